do $$
declare
  source text := pg_get_functiondef('treadle_enqueue_v1(json)'::regprocedure);
begin
  source := replace(source, $a$      'root_id', 'compare', 'notify', 'created_by')$a$, $a$      'root_id', 'compare', 'notify')$a$);
  source := replace(source, $a$limit_key, unique_key, policy, payload,
      created_by)
    select$a$, $a$limit_key, unique_key, policy, payload)
    select$a$);
  source := replace(source, $a$nullif((spec -> 'policy')::text, 'null'), payload_,
      coalesce(spec ->> 'created_by', 'sql:' || session_user)
    where$a$, $a$nullif((spec -> 'policy')::text, 'null'), payload_
    where$a$);
  source := replace(source, $a$spec ->> 'trace_id'),
      ('created_by', spec ->> 'created_by')) as keys$a$,
    $a$spec ->> 'trace_id'))
      as keys$a$);
  execute source;
end
$$;

alter table registered_servers drop column namespace;
alter table finished drop column created_by;
alter table tasks drop column created_by;
