-- What a parked function waits for, so that runs can be listed and counted by what they are doing.

alter table tasks add column doing text;
