-- `treadle_enqueue_v1` with an id does not store a task again whose end it crosses: every snapshot has a stored task in one of
-- the two tables.

do $$
begin
  execute replace(
    pg_get_functiondef('treadle_enqueue_v1(json)'::regprocedure),
    'where not exists (select from finished as f where f.id = new_id)',
    'where not exists (select from finished as f where f.id = new_id) and not exists (select from tasks as t where t.id = new_id)'
  );
end
$$;
