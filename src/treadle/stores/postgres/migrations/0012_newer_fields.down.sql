do $$
begin
  execute 'create or replace view external_production_records_view as ' || regexp_replace(
    pg_get_viewdef('external_production_records_view'::regclass), 'treadle_job_body\((\w+\.)?body\)',
    'case when records.body like ''{%'' then records.body::jsonb else ''{}''::jsonb end'
  );
  execute replace(
    pg_get_functiondef('treadle_enqueue_v1(json)'::regprocedure),
    'where given is null -- a policy is any object: a newer version may have added fields',
    'where given not in (''retries'', ''first_for'', ''factor'', ''cap_for'', ''jitter'')'
  );
end
$$;

drop function treadle_job_body(text);
