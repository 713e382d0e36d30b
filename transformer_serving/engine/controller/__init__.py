"""The controller: keeps a Triton's models equal to the endpoints of a serving task.

Read `service` (the loop), then `plan` (what is to be done, pure), `deployment` (how one model is
changed), and the rooms: `proving` (what must be true before), `control_plane`, `triton`, `files`,
`rollouts`.
"""
