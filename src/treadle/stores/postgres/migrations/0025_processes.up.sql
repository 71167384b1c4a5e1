-- How other servers see that a server is dead: its process, its session with the database, and the evidence of its end.

alter table servers add column process text;
alter table servers add column session text;
alter table servers add column evidence text;
