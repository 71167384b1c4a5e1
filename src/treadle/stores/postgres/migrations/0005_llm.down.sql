-- Removes budgets and what was spent.
drop trigger llm_usage_goes_with_its_run on runs;
drop function treadle_forget_usage();
drop table llm_usage;
drop table llm_budgets;
