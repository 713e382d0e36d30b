"""A look as a terminal shows it, from 60 columns on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from transformer_serving.contract.error_line import printable
from transformer_serving.desk.watch.look import Look
from transformer_serving.desk.watch.numbers import (
    ASCII,
    BLOCKS,
    UNKNOWN,
    milliseconds,
    short,
    sparkline,
)
from transformer_serving.desk.watch.traffic import EndpointTraffic, History, Traffic

_SPARK = 14
_GAP = 2
# Wide enough for any number in short, and for milliseconds of a minute and a half.
_NUMBER = 5
# Less of a name tells nothing; a narrower terminal cuts lines off.
_NAME = 12
# Below it there is no room for sparklines.
_WITH_SPARKS = 72
GONE = "removed"


class Screen:
    """`width` in columns; `utf8` says whether block characters can be printed."""

    def __init__(self, width: int, *, utf8: bool) -> None:
        self._width = width
        self._spark = _SPARK if width >= _WITH_SPARKS else 0
        self._ramp = BLOCKS if utf8 else ASCII

    def picture(
        self, state: Path, look: Look, traffic: Traffic | None, history: History
    ) -> RenderableType:
        rows: list[RenderableType] = [_head(state, look)]
        if traffic is not None:
            rows.append(self._waiting(traffic, history))
        rows += [Text(printable(line), style="bold red") for line in notes(look, traffic)]
        if look.running:
            rows += self._tables(look, traffic, history)
        return Group(*rows)

    def _waiting(self, traffic: Traffic, history: History) -> Text:
        line = Text(waiting(traffic))
        if self._spark:
            line.append(f"  {sparkline(history.waiting, self._spark, self._ramp)}", "cyan")
        return line

    def _tables(
        self, look: Look, traffic: Traffic | None, history: History
    ) -> Iterator[RenderableType]:
        served = endpoints(look, traffic)
        covers = f", over {traffic.seconds:.0f} s" if traffic and traffic.seconds else ""
        table = self._table(f"endpoint{covers}", "req/s", "p50 ms", "p99 ms", "4xx/s", "5xx/s")
        texts = self._table("generated text", "tok/s", "first p50 ms", "first p99 ms", "running")
        for name, ready in served:
            row = traffic.endpoints.get(name) if traffic else None
            label = Text(printable(name), "" if ready == "yes" else "red")
            cells = endpoint_cells(row, known=bool(traffic and traffic.seconds))
            self._add(table, label, cells, history.requests.get(name, ()))
            if row is not None and row.text is not None:
                text = row.text
                times = (text.first_token_p50_s, text.first_token_p99_s)
                told = (short(text.tokens_per_s), *map(milliseconds, times), str(text.running))
                self._add(texts, label, told, history.tokens.get(name, ()))
        yield from (Text(), table)
        if texts.row_count:
            yield from (Text(), texts)

    def _table(self, first: str, *others: str) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        widths = [max(len(title), _NUMBER) for title in others]
        if self._spark:
            widths.insert(1, self._spark)
        rest = self._width - sum(widths) - _GAP * len(widths)
        table.add_column(first, no_wrap=True, overflow="ellipsis", max_width=max(rest, _NAME))
        for at, title in enumerate(others):
            table.add_column(title, no_wrap=True, justify="right", min_width=_NUMBER)
            if at == 0 and self._spark:
                table.add_column(no_wrap=True, min_width=self._spark, style="cyan")
        return table

    def _add(
        self, table: Table, label: Text, cells: Sequence[str], line: Sequence[float | None]
    ) -> None:
        spark = (sparkline(line, self._spark, self._ramp),) if self._spark else ()
        table.add_row(label, cells[0], *spark, *cells[1:])


def endpoint_cells(row: EndpointTraffic | None, *, known: bool) -> tuple[str, ...]:
    """Requests, p50, p99 (ms), refusals and errors; one of no figures has none to show."""
    if row is None or not known:
        return (UNKNOWN,) * 5
    return (
        short(row.requests_per_s),
        milliseconds(row.p50_s),
        milliseconds(row.p99_s),
        short(row.refused_per_s),
        short(row.errors_per_s),
    )


def endpoints(look: Look, traffic: Traffic | None) -> list[tuple[str, str]]:
    """Names with "yes" or why they are not ready: those served now, and those that were asked
    lately though they are not any more."""
    served = {
        row["endpoint"]: "yes" if row["ready"] else row["reason"] or "not ready"
        for row in look.endpoints
    }
    asked = traffic.endpoints.items() if traffic else ()
    gone = {name: GONE for name, row in asked if name not in served and row.requests_per_s}
    return list({**served, **gone}.items())


def waiting(traffic: Traffic) -> str:
    """What waits, against its limit."""
    told = f"waiting {_against(traffic.waiting_tokens, traffic.waiting_tokens_limit)} tokens"
    if traffic.running_streams_limit is not None:
        running = _against(traffic.running_streams, traffic.running_streams_limit)
        told += f", running {running} sequences"
    return told


def _against(value: int, most: int | None) -> str:
    return short(value) if most is None else f"{short(value)} of {short(most)}"


def notes(look: Look, traffic: Traffic | None) -> list[str]:
    """A line for each thing that is not as it should be."""
    found = [look.fault] if look.fault else []
    found += look.ill_parts()
    if look.running:
        found += [f"{name}: {why}" for name, why in endpoints(look, traffic) if why != "yes"]
    if traffic is not None:
        found += [f"{name}: the golden request fails" for name in traffic.failing]
        rates = traffic.refused_per_s.items()
        found += [f"refused by the gateway: {code}, {short(rate)}/s" for code, rate in rates]
    return found


def _head(state: Path, look: Look) -> Text:
    line = Text(f"{look.time[11:19]} UTC  stack in {state}: ", overflow="fold")
    return line.append(look.word, "bold green" if look.running else "bold red")
