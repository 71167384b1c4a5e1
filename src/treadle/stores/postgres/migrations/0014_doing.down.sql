-- Forget what parked functions wait for.

alter table tasks drop column doing;
