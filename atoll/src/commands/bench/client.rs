//! One client of an `atoll bench`, in a process of its own.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use atoll_bench::{
    BlockOperations, BlockTarget, BlockWorkload, ClientMeasurement, ClientVoice, Durability, FileTarget,
    NbdAddress, NbdTarget, ObjectOperations, ObjectTarget, ObjectWorkload, Plan, Prefill, Timer, prefill,
    run_client,
};
use atoll_image::AttachedImage;
use atoll_reactor::LocalRuntime;
use serde::{Deserialize, Serialize};

use super::measurement::TIMEOUT_MS;
use crate::commands::arguments::DataArgument;
use crate::commands::explain;
use crate::commands::image::ImageAccess;
use crate::commands::open_cluster::tokio_runtime;

/// Work of a client, as its parent sends it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Job {
    Block(BlockJob),
    Object(ObjectJob),
}

/// Block I/O.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BlockJob {
    pub target: BlockTargetName,
    pub workload: BlockWorkload,
    pub prefill: Prefill,
    pub plan: Plan,
}

/// Target of a client's operations.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum BlockTargetName {
    Image { data: PathBuf, name: String },
    File { path: PathBuf, durability: Durability },
    Nbd { address: NbdAddress, is_shared: bool },
}

/// Objects.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ObjectJob {
    pub target: ObjectTarget,
    pub workload: ObjectWorkload,
    pub plan: Plan,
}

/// Runs `atoll bench client`.
pub fn run() -> anyhow::Result<()> {
    let (job, voice) = ClientVoice::take_job::<Job>()?;
    let outcome = match job {
        Job::Block(job) => block(&job, &voice),
        Job::Object(job) => object(&job, &voice),
    };
    voice.finish(outcome.map_err(|error| explain(&error)));
    Ok(())
}

fn block(job: &BlockJob, voice: &ClientVoice) -> anyhow::Result<ClientMeasurement> {
    match &job.target {
        BlockTargetName::Image { data, name } => image(job, data, name, voice),
        BlockTargetName::File { path, durability } => {
            let runtime = LocalRuntime::new()?;
            let target = FileTarget::open(&runtime, path, *durability)?;
            runtime.block_on(work(target, job, &Timer::Local(runtime.clone()), voice))?
        }
        BlockTargetName::Nbd { address, is_shared } => tokio_runtime()?.block_on(async {
            let target = NbdTarget::open(address, *is_shared).await?;
            work(target, job, &Timer::Tokio, voice).await
        }),
    }
}

fn image(job: &BlockJob, data: &Path, name: &str, voice: &ClientVoice) -> anyhow::Result<ClientMeasurement> {
    let access = ImageAccess::new(&DataArgument { data: data.into() }, TIMEOUT_MS)?;
    let run = async {
        let attached =
            AttachedImage::attach(&access.client, &access.bridge, &access.admin, name, "atoll bench block")
                .await?;
        let image = Rc::new(attached);
        let outcome = work(Rc::clone(&image), job, &Timer::Local(access.runtime.clone()), voice).await;
        image.detach().await?;
        outcome
    };
    access.runtime.block_on(run)?
}

async fn work(
    target: impl BlockTarget,
    job: &BlockJob,
    timer: &Timer,
    voice: &ClientVoice,
) -> anyhow::Result<ClientMeasurement> {
    let operations = BlockOperations::new(target, job.workload.clone())?;
    let (working_set_bytes, verifier) = (operations.working_set_bytes(), operations.verifier());
    let progress = |done, all| voice.preparing(done, all);
    prefill(operations.target(), working_set_bytes, job.prefill, verifier, &progress).await?;
    voice.wait_for_all()?;
    let measured = run_client(&operations, &job.plan, timer, &voice.edges()).await?;
    Ok(ClientMeasurement { working_set_bytes, ..measured })
}

fn object(job: &ObjectJob, voice: &ClientVoice) -> anyhow::Result<ClientMeasurement> {
    let run = async {
        let operations = ObjectOperations::new(&job.target, job.workload.clone()).await?;
        operations.prefill(&|done, all| voice.preparing(done, all)).await?;
        voice.wait_for_all()?;
        Ok(run_client(&operations, &job.plan, &Timer::Tokio, &voice.edges()).await?)
    };
    tokio_runtime()?.block_on(run)
}
