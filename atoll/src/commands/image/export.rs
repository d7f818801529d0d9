//! Exporting images: to files and pipes, as they are, as changes, or as qcow2.

use atoll_files::Access;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use atoll_image::{AttachedImage, OpenImage, ReadOnlyImage, StreamHeader, StreamWriter};
use atoll_terminal::{print_line, print_note};
use atoll_types::size::format_size;
use clap::{Args, ValueEnum};

use super::super::arguments::DataArgument;
use super::super::output::progress_bar;
use super::{ImageAccess, TIMEOUT_MS, raw_file};

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll image export disk1@monday disk1.raw                         a sparse file
  atoll image export disk1@monday - | zstd > disk1.raw.zst
  atoll image export disk1@monday disk1.full --format changes       only written blocks, with checksums
  atoll image export disk1@tuesday disk1.diff --from monday         only changed blocks
  atoll image export disk1 disk1.qcow2 --format qcow2               through qemu-img

'atoll image import' reads all of them. An image that is being written to is exported by a snapshot. An
unfinished file is called FILE.partial. If an export of a snapshot to a raw file is interrupted, repeat the command
with '--resume'.")]
pub struct ExportArguments {
    #[command(flatten)]
    pub data: DataArgument,
    /// IMAGE or IMAGE@SNAPSHOT
    pub source: String,
    /// The file, which must not exist; '-' for standard output
    pub file: PathBuf,
    /// How it is written [default: raw, or changes with --from]
    #[arg(long, value_enum)]
    pub format: Option<FormatArgument>,
    /// Only blocks that changed since this snapshot of the image
    #[arg(long, value_name = "SNAPSHOT")]
    pub from: Option<String>,
    /// Resume an interrupted export of the same snapshot to a raw file
    #[arg(long)]
    pub resume: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatArgument {
    /// The bytes of the image
    Raw,
    /// A stream of the written blocks, with checksums
    Changes,
    /// By qemu-img, over the NBD server's Unix socket
    Qcow2,
}

/// Bytes that are looked at, and read, at once.
const STEP_BYTES: u64 = 1 << 30;
const READ_BYTES: u64 = 4 << 20;

/// `atoll image export`.
pub fn run(arguments: &ExportArguments) -> anyhow::Result<()> {
    let format = match (arguments.format, &arguments.from) {
        (None, None) => FormatArgument::Raw,
        (None | Some(FormatArgument::Changes), _) => FormatArgument::Changes,
        (Some(format), None) => format,
        (Some(_), Some(_)) => bail!("changes since a snapshot can only be exported with --format changes"),
    };
    let to_stdout = arguments.file.as_os_str() == "-";
    ensure!(
        !arguments.resume || format == FormatArgument::Raw && !to_stdout,
        "only an export to a raw file can be resumed; leave --resume out to start over"
    );
    ensure!(to_stdout || !arguments.file.exists(), "{} exists already", arguments.file.display());
    let access = ImageAccess::new(&arguments.data, TIMEOUT_MS)?;
    if format == FormatArgument::Qcow2 {
        ensure!(!to_stdout, "qcow2 needs a file");
        return super::qemu::export(&access, &arguments.source, &arguments.file);
    }
    if to_stdout {
        return export(&access, arguments, format, std::io::stdout().lock()).map(drop);
    }
    let bytes = match format {
        FormatArgument::Raw => raw_file::export(&access, &arguments.source, &arguments.file, arguments.resume)?,
        _ => export_to_file(&access, arguments, format)?,
    };
    print_line!(
        "exported '{}', {} with data, to {}",
        arguments.source,
        format_size(bytes),
        arguments.file.display()
    );
    Ok(())
}

fn export_to_file(
    access: &ImageAccess,
    arguments: &ExportArguments,
    format: FormatArgument,
) -> anyhow::Result<u64> {
    let partial = partial_path(&arguments.file)?;
    let file = atoll_files::make_anew(&partial, Access::Owner)
        .with_context(|| format!("cannot create {}", partial.display()))?;
    let exported = export(access, arguments, format, &file);
    let exported = exported.and_then(|bytes| Ok(file.sync_all().map(|()| bytes)?));
    if exported.is_err() {
        let _ = std::fs::remove_file(&partial);
    } else {
        atoll_files::rename(&partial, &arguments.file)?;
    }
    exported
}

/// Where a new file is written before it is whole and can be taken for the image. Notes of an earlier export are
/// removed, because they do not describe the new file.
pub fn partial_path(path: &Path) -> anyhow::Result<PathBuf> {
    raw_file::forget(path)?;
    Ok(path.with_added_extension("partial"))
}

/// Returns the identity of a source, which differs between sources. Only a snapshot can be resumed.
pub fn identity(access: &ImageAccess, source: &str, resumes: bool) -> anyhow::Result<String> {
    match source.split_once('@') {
        Some((image, snapshot)) => {
            let (record, snapshot) = access.block_on_tokio(access.admin.get_snapshot(image, snapshot))?;
            Ok(format!("snapshot {} of image {}", snapshot.number, record.id))
        }
        None if resumes => {
            bail!(
                "only an export of a snapshot can be resumed: image '{source}' may have changed meanwhile; leave \
                 --resume out to start over"
            )
        }
        None => Ok("an image that is no snapshot".into()),
    }
}

/// Opens a snapshot, or an image without a writer.
pub fn open(access: &ImageAccess, source: &str, purpose: &str) -> anyhow::Result<OpenImage> {
    let (client, bridge) = (access.client.clone(), access.bridge.clone());
    access.admin_call(|admin, _| async move {
        match source.split_once('@') {
            Some((image, snapshot)) => {
                let opened = ReadOnlyImage::open(&client, &bridge, &admin, image, Some(snapshot), purpose);
                Ok(OpenImage::Read(Box::new(opened.await?)))
            }
            None => {
                let attached = AttachedImage::attach(&client, &bridge, &admin, source, purpose).await?;
                Ok(OpenImage::Written(Box::new(attached)))
            }
        }
    })
}

fn export(
    access: &ImageAccess,
    arguments: &ExportArguments,
    format: FormatArgument,
    mut output: impl Write,
) -> anyhow::Result<u64> {
    if let Some(from) = &arguments.from {
        return export_changes(access, &arguments.source, from, output);
    }
    let image = open(access, &arguments.source, "exporting")?;
    let size_bytes = image.size_bytes();
    let exported = if format == FormatArgument::Changes {
        let to = arguments.source.split_once('@').map_or("", |(_, snapshot)| snapshot);
        let header = StreamHeader { size_bytes, from: String::new(), to: to.into() };
        let mut stream = StreamWriter::new(output, &header)?;
        let copied = for_each_data(access, &image, 0, |offset, data| Ok(stream.data(offset, data)?));
        copied.and_then(|bytes| Ok(stream.finish().map(|_| bytes)?))
    } else {
        let mut at = 0;
        let copied = for_each_data(access, &image, 0, |offset, data| {
            write_zeros(&mut output, offset - at)?;
            at = offset + data.len() as u64;
            Ok(output.write_all(data)?)
        });
        copied.and_then(|bytes| Ok(write_zeros(&mut output, size_bytes - at).map(|()| bytes)?))
    };
    access.admin_call(|_, _| image.close())?;
    exported
}

fn write_zeros(output: &mut impl Write, mut count: u64) -> std::io::Result<()> {
    let zeros = [0; 64 << 10];
    while count > 0 {
        let part = count.min(zeros.len() as u64) as usize;
        output.write_all(&zeros[..part])?;
        count -= part as u64;
    }
    Ok(())
}

/// Gives everything from an offset on that holds data, in order; returns how many bytes that were.
pub fn for_each_data(
    access: &ImageAccess,
    image: &OpenImage,
    from: u64,
    mut visit: impl FnMut(u64, &[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<u64> {
    let (size_bytes, progress) = (image.size_bytes(), progress_bar("copying"));
    let (mut at, mut copied) = (from, 0);
    while at < size_bytes {
        let extents = access.admin_call(|_, _| image.extents(at, STEP_BYTES.min(size_bytes - at)))?;
        for (length, is_hole) in extents {
            let end = at + length;
            while !is_hole && at < end {
                let part = READ_BYTES.min(end - at);
                let data = access.admin_call(|_, _| image.read(at, part as u32))?;
                visit(at, &data)?;
                at += part;
                copied += part;
                progress(at, size_bytes);
            }
            at = end;
            progress(at, size_bytes);
        }
    }
    Ok(copied)
}

fn export_changes(access: &ImageAccess, source: &str, from: &str, output: impl Write) -> anyhow::Result<u64> {
    let Some((image, to)) = source.split_once('@') else {
        bail!("--from needs a snapshot to compare with: take one, and export '{source}@SNAPSHOT'");
    };
    let (client, bridge) = (access.client.clone(), access.bridge.clone());
    let (older, newer) = access.admin_call(|admin, _| async move {
        let older = ReadOnlyImage::open(&client, &bridge, &admin, image, Some(from), "exporting").await?;
        let newer = ReadOnlyImage::open(&client, &bridge, &admin, image, Some(to), "exporting").await?;
        Ok((older, newer))
    })?;
    let header = StreamHeader { size_bytes: newer.size_bytes(), from: from.into(), to: to.into() };
    let mut stream = StreamWriter::new(output, &header)?;
    let mut bytes = 0;
    let progress = progress_bar("comparing");
    let compared = access.admin_call(|_, _| {
        newer.changes_since(&older, &progress, |change| {
            bytes += change.data.len() as u64;
            Ok(stream.data(change.offset, &change.data)?)
        })
    });
    for image in [&older, &newer] {
        access.admin_call(|_, _| image.close())?;
    }
    compared?;
    stream.finish()?;
    print_note!("{} are different between '{from}' and '{to}'", format_size(bytes));
    Ok(bytes)
}
