"""Text generation as one engine thread: calls are checked, admitted, stepped together, streamed."""
