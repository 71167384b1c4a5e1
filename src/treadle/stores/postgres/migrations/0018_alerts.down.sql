-- Removes alert rules and alerts. Tasks that evaluate a rule end without it.
drop index runs_failed;
delete from legal_moves where entity in ('alert_rule', 'alert');
delete from records where entity in ('alert_rule', 'alert');
