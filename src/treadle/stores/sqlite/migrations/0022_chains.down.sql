drop index runs_chain;
alter table runs drop column link;
alter table runs drop column chain_id;
