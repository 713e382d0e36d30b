"""clearml-serving's own command line, unmodified.

`python -m transformer_serving.desk.clearml_tools.command` is it; the desk's own calls come by
warm_command.py.
It imports torch and scikit-learn wherever they are installed, as they are beside `convert`: that
costs two seconds a command, for engines that these commands do not touch. And it writes again the
sections that it reads: what somebody had it take from this machine would stand in the task.

Tested by tests/stack/test_clearml_commands.py.
"""

from __future__ import annotations

import sys

from transformer_serving.contract.worker.hidden_frameworks import hidden_frameworks
from transformer_serving.contract.worker.parsed_sections import parse_sections_once
from transformer_serving.contract.worker.sdk_defaults import parse_defaults_without_comments
from transformer_serving.contract.worker.sdk_schemas import check_schemas_once

with hidden_frameworks():
    from clearml_serving.__main__ import main

parse_defaults_without_comments()
check_schemas_once()
parse_sections_once()

if __name__ == "__main__":
    sys.argv[0] = "clearml-serving"
    main()
