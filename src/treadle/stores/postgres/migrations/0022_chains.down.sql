drop index runs_chain;
alter table runs drop column link, drop column chain_id;
