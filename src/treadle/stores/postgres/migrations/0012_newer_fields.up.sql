-- Rows of newer versions and damaged rows: a retry policy keeps fields that this version does not know, and the view of external
-- jobs shows a record that cannot be read with its other columns alone.

do $$
begin
  execute replace(
    pg_get_functiondef('treadle_enqueue_v1(json)'::regprocedure),
    'where given not in (''retries'', ''first_for'', ''factor'', ''cap_for'', ''jitter'')',
    'where given is null -- a policy is any object: a newer version may have added fields'
  );
end
$$;

create function treadle_job_body(body text) returns jsonb language plpgsql immutable as $$
begin
  perform (job ->> 'polling_interval_seconds')::double precision, (job ->> 'progress')::double precision,
    (job ->> 'dispatched_at')::bigint, (job ->> 'last_polled_at')::bigint, (job ->> 'completed_at')::bigint,
    (job ->> 'render_event_object_id')::uuid, (job ->> 'polls')::integer, (job ->> 'raised')::integer,
    (job ->> 'raised_in_row')::integer, (job ->> 'due_at')::bigint
  from (select body::jsonb as job) as read;
  return body::jsonb;
exception when others then
  return '{}';
end
$$;

do $$
begin
  execute 'create or replace view external_production_records_view as ' || regexp_replace(
    pg_get_viewdef('external_production_records_view'::regclass), 'CASE\s+WHEN.*?END AS body', 'treadle_job_body(records.body) AS body'
  );
end
$$;
