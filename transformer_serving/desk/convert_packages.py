"""How the packages of `convert` are installed: the project is on no index, so from its checkout."""

INSTALL = (
    "in the checkout: .venv/bin/python -m pip install --constraint requirements/desk.lock "
    "-e '.[convert]'"
)
