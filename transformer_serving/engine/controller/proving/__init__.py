"""Whether an engine answers on this machine as it does where its bundle was made."""
