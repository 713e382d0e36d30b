"""clearml-serving's own command line, unmodified.

`python -m transformer_serving.desk.clearml_tools.command` is it.
It imports torch and scikit-learn wherever they are installed, as they are beside `convert`: that
costs two seconds a command, for engines that these commands do not touch.

Tested by tests/stack/test_clearml_commands.py.
"""

from __future__ import annotations

import sys

from transformer_serving.contract.worker.hidden_frameworks import hidden_frameworks

with hidden_frameworks():
    from clearml_serving.__main__ import main

if __name__ == "__main__":
    sys.argv[0] = "clearml-serving"
    main()
