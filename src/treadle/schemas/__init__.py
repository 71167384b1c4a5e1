"""JSON Schemas of the artifacts of the goal pipeline, one file each; `treadle.kernel.goal_schemas` validates with them."""
