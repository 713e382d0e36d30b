"""How often each part looks at the serving task, in the minutes that clearml-serving has them in.

Tested by tests/gateway/test_settings.py and tests/engine/test_container.py.
"""

from __future__ import annotations

from transformer_serving.contract.settings.setting import Setting

_HELP = "Minutes between two looks at the endpoints."
_MINUTES = (0.001, 86_400)
# The host reads it itself: of what is no number it makes its five minutes without a word, at 0 it
# asks without a pause, and below it its thread ends.
SERVING_POLL = Setting("CLEARML_SERVING_POLL_FREQ", "5", *_MINUTES, _HELP)
TRITON_POLL = Setting("CLEARML_TRITON_POLL_FREQ", "0.1", *_MINUTES, _HELP)
