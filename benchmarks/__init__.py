"""The kit beside what people use today: same model, same texts, same machine, rounds interleaved.

`make bench` runs it; docs/performance.md says how it measures and holds the figures.
"""
