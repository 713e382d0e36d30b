"""The pieces of one sequence or several as events, in the order in which they come.

Tested by tests/preprocess/generation/test_text_generation.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence as Rows
from typing import NamedTuple

from preprocess.generation.sequence import Piece, Sequence
from preprocess.generation.voice import Voice
from preprocess.passage import Passage, internal_error
from preprocess.stats import DISCONNECT
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.panics import ENDS


class Coming(NamedTuple):
    """`piece` of the sequence at that place; None at its end."""

    at: int
    piece: Piece | None


async def events_of(
    sequences: Rows[Sequence], voice: Voice, passage: Passage
) -> AsyncIterator[bytes]:
    """What the caller is sent. An error is the last event, never the end of a whole answer."""
    try:
        async for event in _told(sequences, voice):
            if event:
                yield event
    except ServingError as error:
        passage.fault = error.without_frames()
        close_all(sequences, error.kind.code)
        yield voice.fault(error)
    except ENDS:
        raise
    except BaseException as error:
        fault = internal_error(error, passage)
        passage.fault = fault
        close_all(sequences, fault.kind.code)
        yield voice.fault(fault)
    finally:
        close_all(sequences)


async def _told(sequences: Rows[Sequence], voice: Voice) -> AsyncIterator[bytes]:
    yield voice.begin()
    async for coming in merged(sequences):
        sequence = sequences[coming.at]
        if coming.piece is None:
            yield voice.end(coming.at, sequence)
        else:
            yield voice.piece(coming.at, coming.piece, sequence)
    yield voice.last(sequences)


async def merged(sequences: Rows[Sequence]) -> AsyncIterator[Coming]:
    """Raises the ServingError of the first that fails."""
    if len(sequences) == 1:
        async for piece in sequences[0].pieces():
            yield Coming(0, piece)
        yield Coming(0, None)
        return
    # One place each: what nobody reads yet is not read from the engine either.
    queue: asyncio.Queue[Coming | BaseException] = asyncio.Queue(len(sequences))
    tasks = [
        asyncio.ensure_future(_forward(at, sequence, queue))
        for at, sequence in enumerate(sequences)
    ]
    running = len(tasks)
    try:
        while running:
            coming = await queue.get()
            if isinstance(coming, BaseException):
                raise coming
            running -= coming.piece is None
            yield coming
    finally:
        for task in tasks:
            task.cancel()


async def _forward(
    at: int, sequence: Sequence, queue: asyncio.Queue[Coming | BaseException]
) -> None:
    try:
        async for piece in sequence.pieces():
            await queue.put(Coming(at, piece))
        await queue.put(Coming(at, None))
    except ENDS:
        raise
    except BaseException as error:
        await queue.put(error)


def close_all(sequences: Rows[Sequence], reason: str = DISCONNECT) -> None:
    """Where one fails, the others are cut by the same fault, and before their tasks are."""
    for sequence in sequences:
        sequence.close(reason)
