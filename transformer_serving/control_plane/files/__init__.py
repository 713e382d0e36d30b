"""The file server: what is stored, uploaded and collected."""
