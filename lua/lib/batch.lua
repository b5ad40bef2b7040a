-- How many sessions one call looks at or changes (rule 13): no call holds Redis up. Python reads this number from here.
local BATCH = 64
