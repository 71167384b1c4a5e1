"""JSON Schemas of the artifacts of the goal pipeline, one file each; `treadle.goals.schemas` validates with them."""
