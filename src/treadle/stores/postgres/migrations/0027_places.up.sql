-- The actor that enqueued a task, and the namespace of a server.

alter table finished add column created_by text;
alter table tasks add column created_by text;
alter table registered_servers add column namespace text;

do $$
declare
  source text := pg_get_functiondef('treadle_enqueue_v1(json)'::regprocedure);
begin
  source := replace(source, $a$      'root_id', 'compare', 'notify')$a$, $a$      'root_id', 'compare', 'notify', 'created_by')$a$);
  source := replace(source, $a$limit_key, unique_key, policy, payload)
    select$a$, $a$limit_key, unique_key, policy, payload,
      created_by)
    select$a$);
  source := replace(source, $a$nullif((spec -> 'policy')::text, 'null'), payload_
    where$a$, $a$nullif((spec -> 'policy')::text, 'null'), payload_,
      coalesce(spec ->> 'created_by', 'sql:' || session_user)
    where$a$);
  source := replace(source, $a$spec ->> 'trace_id'))
      as keys$a$,
    $a$spec ->> 'trace_id'),
      ('created_by', spec ->> 'created_by')) as keys$a$);
  execute source;
end
$$;
