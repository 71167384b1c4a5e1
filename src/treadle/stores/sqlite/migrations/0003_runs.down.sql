-- Removes all runs and flows. Tasks of runs that are still live have nobody to tell then.
drop table steps;
drop table runs;
drop table flow_versions;
drop table flows;
