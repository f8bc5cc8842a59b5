-- Stand-in: writes how many shards a job asked for into its comment.
function slurm_job_submit(job, partitions, uid)
    local asked = (job.tres_per_node or "") .. (job.tres_per_job or "")
    local shards = asked:match("shard:(%d+)") or (asked:match("shard") and "1")
    local word = shards and "gpulease:shards=" .. shards or asked:match("gpu") and "gpulease:gpus" or nil
    local kept = (job.comment or ""):gsub("gpulease:[^ ;]*", "")
    job.comment = word and (kept == "" and word or word .. ";" .. kept) or job.comment
    return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
    return slurm.SUCCESS
end

return slurm.SUCCESS
