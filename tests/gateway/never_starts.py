"""An app that is never made, and whose process does not hear SIGTERM, as in a hung import."""

import os
import signal
import time
from pathlib import Path

signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(os.environ["NEVER_STARTS"]).touch()
time.sleep(600)
