"""`transformer-serving doctor`: what is wrong with this machine or stack, why, and the fix.

Read `table` (the checks), then `subject` (what is looked at); each module beside them holds the
checks of one part.
"""
