-- name: own
-- Rows with a namespace.
{row}.namespace = {namespace}

-- name: of_run
-- Rows of runs.
exists (select 1 from runs as r where r.id = {row}.run_id and r.namespace = {namespace})

-- name: of_task
-- Rows of tasks, live or finished.
(exists (select 1 from tasks as r where r.id = {row}.task_id and r.namespace = {namespace})
  or exists (select 1 from finished as r where r.id = {row}.task_id and r.namespace = {namespace}))

-- name: of_record
-- Rows of records.
exists (select 1 from records as r where r.id = {row}.record_id and r.namespace = {namespace})

-- name: of_stream
-- Rows of streams.
exists (select 1 from streams as r where r.owner_id = {row}.owner_id and r.name = {row}.name and r.namespace = {namespace})

-- name: of_entity
-- Transitions of tasks, runs and records.
(exists (select 1 from tasks as r where r.id = {row}.entity_id and r.namespace = {namespace})
  or exists (select 1 from finished as r where r.id = {row}.entity_id and r.namespace = {namespace})
  or exists (select 1 from runs as r where r.id = {row}.entity_id and r.namespace = {namespace})
  or exists (select 1 from records as r where r.id = {row}.entity_id and r.namespace = {namespace}))

-- name: of_root
-- Rows of trees.
(exists (select 1 from tasks as r where r.id = {row}.root_id and r.namespace = {namespace})
  or exists (select 1 from tasks as r where r.root_id = {row}.root_id and r.root_id <> r.id and r.namespace = {namespace})
  or exists (select 1 from finished as r where r.id = {row}.root_id and r.namespace = {namespace})
  or exists (select 1 from finished as r where r.root_id = {row}.root_id and r.root_id <> r.id and r.namespace = {namespace})
  or exists (select 1 from runs as r where r.id = {row}.root_id and r.namespace = {namespace})
  or exists (select 1 from runs as r where r.root_id = {row}.root_id and r.root_id <> r.id and r.namespace = {namespace})
  or exists (select 1 from records as r where r.root_id = {row}.root_id and r.namespace = {namespace}))

-- name: used_flow
-- Flows that the namespace published or runs.
({row}.id in (select v.flow_id from flow_versions as v where v.namespace = {namespace})
  or {row}.id in (select v.flow_id from runs as v where v.namespace = {namespace}))

-- name: used_blob
-- Large values in trees of the namespace.
{row}.digest in (select u.digest from blob_uses as u where u.digest = {row}.digest and (
  exists (select 1 from tasks as r where r.id = u.root_id and r.namespace = {namespace})
  or exists (select 1 from tasks as r where r.root_id = u.root_id and r.root_id <> r.id and r.namespace = {namespace})
  or exists (select 1 from finished as r where r.id = u.root_id and r.namespace = {namespace})
  or exists (select 1 from finished as r where r.root_id = u.root_id and r.root_id <> r.id and r.namespace = {namespace})
  or exists (select 1 from runs as r where r.id = u.root_id and r.namespace = {namespace})
  or exists (select 1 from runs as r where r.root_id = u.root_id and r.root_id <> r.id and r.namespace = {namespace})
  or exists (select 1 from records as r where r.root_id = u.root_id and r.namespace = {namespace})))
