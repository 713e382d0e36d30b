"""The controller: keeps a Triton's models equal to the endpoints of a serving task.

Read `service` (the loop), then `plan` (what is to be done, pure), `deployment` (how one model is
changed), `prover` (what must be true before), and the edges: `clearml_edge`, `triton`,
`repository`, `state`.
"""
