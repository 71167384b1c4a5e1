-- Nothing changes: its view shows damaged records, and it has no function that checks retry policies.

select 1;
