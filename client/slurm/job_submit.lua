-- What a job asks of its GPUs, written into the job where its prolog reads it and its user cannot forge it.
--
-- A module: the site's own job_submit.lua calls it from both of its functions, see job_submit.lua.example.
-- It counts what Slurm will charge for, takes the user's wish for less ("gpulease:vram=8G,cu=25%" as a word of
-- --extra or --comment, or GPULEASE=vram=8G,cu=25% in a batch job's environment), removes every word of the
-- user's that begins like ours, and writes one of its own: "gpulease:shards=2,vram=8G" or "gpulease:gpus".
-- Lua 5.1 to 5.4. Texts are a user's: none is ever run, and none comes back unchecked.

local gpulease = {
    -- The field that carries the word; the agent's slurm.request_from must be the same. "comment" before
    -- Slurm 23.02, and where SchedulerParameters has extra_constraints, which makes --extra a filter of nodes.
    field = "extra",
}

local PREFIX = "gpulease:"
local TRES = { "tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task" }
local SIZES = { "num_tasks", "ntasks_per_node", "min_nodes", "max_nodes" }
local NO_VAL16, NO_VAL = 65534, 4294967294 -- slurm.h: not set, by 16 and by 32 bits; one more: no limit
local MOST = 1024 -- shards of a node that Slurm takes
local EXCLUSIVE = 0 -- of job_desc.shared
local USAGE = "write gpulease:vram=8G,cu=25%, or only one of the two, within the shards that you ask for"

-- A number that is set, else nil.
local function number(value)
    if type(value) ~= "number" or value >= NO_VAL or value == NO_VAL16 or value == NO_VAL16 + 1 then
        return nil
    end
    return value
end

-- What an item of a TRES string asks of *name*: "gres:shard:2", "gres/shard:mi300x=2", "gres:gpu". Nil for another
-- gres or TRES; false for one that Slurm may read in another way, as "xgres:shard:1" or "shard:2" with nothing before.
local function count_of(item, name)
    local gres, rest = string.match(item, "^gres[:/]([%w_]+)(.*)$")
    if not gres then
        local low = string.lower(item)
        return not string.find(low, "gres", 1, true) and not string.find(low, "^%W*" .. name) and nil
    end
    if gres ~= name then
        return string.lower(gres) ~= name and not string.find(string.lower(rest), "gres", 1, true) and nil
    end
    rest = string.match(rest, "^([^(]*)%([%w:-]*%)$") or rest
    if #rest > 64 then
        return false -- the patterns below go back, and slurmctld waits
    end
    local digits = string.match(rest, "^[:=](%d+)$") or string.match(rest, "^:[%w_.-]*%a[%w_.-]*[:=](%d+)$")
    if digits then
        return (digits == "0" or string.match(digits, "^[1-9]")) and tonumber(digits) or false
    end
    return (rest == "" or string.match(rest, "^:[%w_.-]*%a[%w_.-]*$")) and 1 or false
end

-- How many of the gres *name* a TRES string has, and in how many items; nil where Slurm may count another number.
local function count(tres, name)
    local total, items = 0, 0
    for item in string.gmatch(tres or "", "[^,]+") do
        local found = count_of(item, name)
        if found == false then
            return nil
        end
        total, items = total + (found or 0), items + (found and 1 or 0)
    end
    return total, items
end

-- Tasks on each node, where that is sure: --ntasks-per-node is a bound only, beside --ntasks or a range of nodes.
local function tasks_per_node(get)
    local tasks, nodes = number(get("num_tasks")), number(get("max_nodes"))
    local per_node = number(get("ntasks_per_node"))
    if nodes == 1 then
        return tasks or per_node
    end
    if not nodes or not per_node then
        return nil
    end
    tasks = tasks or number(get("min_nodes")) == nodes and per_node * nodes
    return tasks == per_node * nodes and per_node or nil
end

-- Shards on each node; nil and why where they cannot be told.
local function shards_of(get)
    local counts, said = {}, 0
    for _, key in ipairs(TRES) do
        local found, items = count(get(key), "shard")
        if not found then
            return nil, "ask for shards as --gres=shard:N, or --gres=shard:TYPE:N"
        end
        counts[key] = found
        said = said + items
    end
    -- Of two in one field Slurm charges for the last.
    if said > 1 or counts.tres_per_socket > 0 then
        return nil, "ask for shards once, and in one way: --gres=shard:N is N on each node"
    end
    if counts.tres_per_job > 0 and number(get("max_nodes")) ~= 1 then
        return nil, "shards of a whole job cannot be told for a node: ask for --gres=shard:N, N on each node"
    end
    local tasks = counts.tres_per_task > 0 and tasks_per_node(get) or 0
    if not tasks or counts.tres_per_task > 0 and tasks == 0 then
        return nil, "shards of a task need to say how many tasks a node has: add --nodes and --ntasks-per-node,"
            .. " or ask for --gres=shard:N, N on each node"
    end
    local shards = counts.tres_per_node + counts.tres_per_job + counts.tres_per_task * tasks
    if shards > MOST then
        return nil, "no node has so many shards"
    end
    return shards
end

-- What the word begins with: "shards=2", "gpus", or nil for a job without GPUs; false and why for a wrong one.
local function base(get)
    local gpus = 0
    for _, key in ipairs(TRES) do
        local found = count(get(key), "gpu")
        if not found then
            return false, "ask for GPUs as --gres=gpu:N, or --gres=gpu:TYPE:N"
        end
        gpus = gpus + found
    end
    local shards, why = shards_of(get)
    if not shards then
        return false, why
    end
    if shards > 0 and gpus > 0 then
        return false, "ask for shards of a GPU or for whole GPUs, not for both in one job"
    end
    if shards > 0 then
        return "shards=" .. string.format("%d", shards)
    end
    return (gpus > 0 or get("shared") == EXCLUSIVE) and "gpus" or nil
end

-- One item of a wish as we write it, "" for one that is ours to say, or nil.
local function item_of(text)
    if text == "gpus" or string.match(text, "^shards=%d+$") then
        return "" -- copied from a job of ours: what it says is counted, never read
    end
    local digits, unit = string.match(text, "^vram=([1-9]%d*)(%a*)$")
    if digits and #digits <= 15 and (unit == "kB" or string.match(unit, "^[KMGT]?$")
        or string.match(unit, "^[KMGT]iB$") or string.match(unit, "^[MGT]B$")) then
        return text
    end
    local whole, rest = string.match(text, "^cu=(%d+)(.*)%%$")
    if whole and #whole <= 3 and (rest == "" or string.match(rest, "^%.%d%d?$")) then
        local percent = tonumber(whole .. rest)
        return percent > 0 and percent <= 100 and text or nil
    end
    return nil
end

-- A wish in the order in which we write it, "" for none; nil where it is no wish.
local function wish_of(text)
    local items = {}
    for part in string.gmatch(text .. ",", "([^,]*),") do
        local item = item_of(part)
        local key = item and string.match(item, "^%a+")
        if not item or key and items[key] then
            return nil
        end
        items[key or ""] = item
    end
    return (items.vram and "," .. items.vram or "") .. (items.cu and "," .. items.cu or "")
end

-- A text without the words that hold PREFIX, and those words. In one pass: the text may be as long as a user
-- likes, and slurmctld waits.
local function split(text)
    local words, kept = {}, {}
    if not string.find(text, PREFIX, 1, true) then
        return text, words
    end
    for gap, word in string.gmatch(text, "([%s;]*)([^%s;]*)") do
        if string.find(word, PREFIX, 1, true) then
            words[#words + 1] = word
        elseif word ~= "" then
            kept[#kept + 1] = #kept > 0 and gap .. word or word
        end
    end
    return table.concat(kept), words
end

-- The one wish in *texts*; nil and why where there are several, or one is no wish.
local function wished(texts, more)
    local wishes = { more }
    for _, text in ipairs(texts) do
        local _, words = split(text)
        for _, word in ipairs(words) do
            wishes[#wishes + 1] = string.match(word, "^" .. PREFIX .. "(.*)$") or "?"
        end
    end
    local wish = ""
    for _, text in ipairs(wishes) do
        local one = wish_of(text)
        if not one then
            return nil, "a gpulease: word of yours is not understood: " .. USAGE
        end
        if wish ~= "" and one ~= "" and one ~= wish then
            return nil, "your gpulease: words differ: say it once"
        end
        wish = one ~= "" and one or wish
    end
    return wish
end

-- The word for a job, "" for none; nil and why it is refused.
local function word_of(get, wish)
    local asked, why = base(get)
    if asked == false then
        return nil, why
    end
    if wish ~= "" and (asked == nil or asked == "gpus") then
        return nil, "gpulease: words are for shards of a GPU: ask for --gres=shard:N as well"
    end
    return asked and PREFIX .. asked .. wish or ""
end

-- Put *word* first: the agent looks at the beginning of a text only. *given*: texts of the user's, by field.
local function write(desc, word, given)
    for field, text in pairs(given) do
        local rest, words = split(text)
        if field == gpulease.field then
            desc[field] = word .. (word ~= "" and rest ~= "" and " " or "") .. rest
        elseif #words > 0 then
            desc[field] = rest
        end
    end
end

-- GPULEASE of a batch job; Slurm has no other job's environment.
local function environment_of(desc)
    local environment = desc.script and desc.environment
    local text = environment and environment.GPULEASE
    return text ~= "" and text or nil
end

--- For slurm_job_submit: nil, or why the job is refused.
function gpulease.submit(desc)
    local get = function(key) return desc[key] end
    local wish, why = wished({ desc.extra or "", desc.comment or "" }, environment_of(desc))
    if not wish then
        return why
    end
    local word, refused = word_of(get, wish)
    if not word then
        return refused
    end
    local given = { extra = desc.extra, comment = desc.comment }
    if word ~= "" then
        given[gpulease.field] = given[gpulease.field] or ""
    end
    write(desc, word, given)
    return nil
end

-- The word that a job has, as if the user had just written it; a job's from before this module is checked so.
local function had(rec)
    local _, words = split(rec[gpulease.field] or "")
    return words[1] or ""
end

-- Whether a TRES string asks for GPUs in any way, also in one that is not ours to read.
local function asks(tres)
    return count(tres, "shard") ~= 0 or count(tres, "gpu") ~= 0
end

-- Whether a change is one of what the job asks of GPUs. Slurm makes a change in parts, and may fail between them: then
-- a new word would stand beside the old shards.
local function resizes(desc, rec)
    for _, key in ipairs(TRES) do
        if desc[key] ~= nil and desc[key] ~= (rec[key] or "") and (asks(desc[key]) or asks(rec[key])) then
            return true
        end
    end
    local by_size = asks(rec.tres_per_task) or asks(rec.tres_per_job)
    for _, key in ipairs(SIZES) do
        if by_size and number(desc[key]) and desc[key] ~= rec[key] then
            return true
        end
    end
    return false
end

--- For slurm_job_modify: nil, or why the change is refused. The word follows the job as it was submitted.
function gpulease.modify(desc, rec)
    if resizes(desc, rec) then
        return "what a job asks of GPUs cannot be changed: cancel it, and submit it again"
    end
    if desc.extra == nil and desc.comment == nil then
        return nil
    end
    local get = function(key) return rec[key] end
    local old = wished({ had(rec) }) or ""
    local new, why = wished({ desc.extra or "", desc.comment or "" })
    if not new then
        return why
    end
    local word, refused = word_of(get, new ~= "" and new or old)
    if not word and new ~= "" and new ~= old then
        return refused
    end
    if (word or "") == "" then
        word = had(rec) -- what only the submission showed: tasks on a node, a whole node
    end
    local given = { extra = desc.extra, comment = desc.comment }
    given[gpulease.field] = given[gpulease.field] or rec[gpulease.field] or ""
    write(desc, word, given)
    return nil
end

return gpulease
