-- Checks the rows that were there before. Nobody waits for it.

ALTER TABLE discrepancy VALIDATE CONSTRAINT discrepancy_repairable_word;
