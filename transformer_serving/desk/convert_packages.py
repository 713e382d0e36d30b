"""How the packages of `convert` are installed: the project is on no index, so from its checkout.

Tested by tests/cli/test_convert.py.
"""

INSTALL = (
    "in the checkout: .venv/bin/python -m pip install --constraint requirements/desk.lock "
    "-e '.[convert]'"
)
