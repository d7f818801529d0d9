//! Files of other formats, through qemu-img and the NBD server.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use atoll_admin::images;
use atoll_image::ImageError;
use atoll_terminal::print_line;
use serde::Deserialize;

use super::ImageAccess;
use super::export::partial_path;

/// How long the NBD server may keep an image after its last client went.
const SERVER_PATIENCE: Duration = Duration::from_secs(30);
const SERVER_POLL: Duration = Duration::from_millis(100);

/// Where qemu-img finds an image.
fn place(access: &ImageAccess, export: &str) -> anyhow::Result<String> {
    let sockets = access.open.cluster.nbd_listen.iter().filter_map(|address| address.strip_prefix("unix:"));
    let socket = sockets.into_iter().next().context(
        "qcow2 is read and written by qemu-img through the NBD server, which listens on no Unix socket; start the \
         cluster with --nbd-listen unix:PATH",
    )?;
    Ok(format!("nbd+unix:///{export}?socket={socket}"))
}

fn qemu_img(arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
    let done = Command::new("qemu-img").args(arguments).output();
    let done =
        done.context("cannot run qemu-img, which reads and writes qcow2: install the package qemu-utils")?;
    ensure!(done.status.success(), "qemu-img: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(done.stdout)
}

pub fn export(access: &ImageAccess, source: &str, file: &Path) -> anyhow::Result<()> {
    let partial = partial_path(file)?;
    let (place, path) = (place(access, source)?, partial.to_string_lossy());
    let written = qemu_img(&["convert", "-f", "raw", "-O", "qcow2", &place, &path]).and_then(|_| {
        qemu_img(&["compare", "-f", "raw", "-F", "qcow2", &place, &path])
            .context("the file differs from the image")
    });
    if let Err(error) = written {
        let _ = std::fs::remove_file(&partial);
        return Err(error);
    }
    std::fs::File::open(&partial)?.sync_all()?;
    atoll_files::rename(&partial, file)?;
    print_line!("exported '{source}' to {}", file.display());
    Ok(())
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Information {
    virtual_size: u64,
}

pub fn import(access: &ImageAccess, file: &Path, name: &str, pool: &str, is_sealed: bool) -> anyhow::Result<()> {
    let path = file.to_string_lossy();
    let said = qemu_img(&["info", "--output", "json", "-f", "qcow2", &path])?;
    let information: Information =
        serde_json::from_slice(&said).context("qemu-img info says something unexpected")?;
    let size_bytes = information.virtual_size.next_multiple_of(4096);
    ensure!(!access.has_image(name)?, "there is an image '{name}' already");
    // Under its own name it is there when it is whole.
    let partial = format!("{name}.partial");
    let place = place(access, &partial)?;
    let created = images::create(access.admin.state(), access.open.keys()?, &partial, size_bytes, pool, is_sealed);
    access.block_on_tokio(created).with_context(|| {
        format!("cannot make the image '{partial}'; if an import has left it that was interrupted, remove it")
    })?;
    qemu_img(&["convert", "-n", "-f", "qcow2", "-O", "raw", "--target-is-zero", &path, &place])?;
    access.block_on_tokio(rename_when_idle(access, &partial, name))?;
    print_line!("imported image '{name}'");
    Ok(())
}

/// The NBD server gives the image back some moments after its last client went.
async fn rename_when_idle(access: &ImageAccess, partial: &str, name: &str) -> anyhow::Result<()> {
    let deadline = Instant::now() + SERVER_PATIENCE;
    loop {
        match access.admin.rename(partial, name).await {
            Err(ImageError::InUse { .. }) if Instant::now() < deadline => tokio::time::sleep(SERVER_POLL).await,
            renamed => return Ok(renamed.map(drop)?),
        }
    }
}
