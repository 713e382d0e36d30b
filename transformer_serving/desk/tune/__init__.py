"""Searching the settings that make an endpoint fast, on a stack beside the served one."""
