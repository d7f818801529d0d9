//! Importing images from files and pipes, copying them, and giving zeros back.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use atoll_admin::pools::POOL_IMAGES;
use atoll_image::{StreamHeader, StreamPart, StreamReader, runs};
use atoll_terminal::print_line;
use atoll_types::size::{format_size, parse_size_bytes};
use clap::Args;

use super::super::arguments::{DataArgument, SealingArgument};
use super::super::output::progress_bar;
use super::export::{for_each_data, identity, open};
use super::target::{BLOCK_BYTES, Target};
use super::{ImageAccess, TIMEOUT_MS};

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll image import debian.raw disk1
  atoll image import debian.qcow2 disk1                      through qemu-img
  zstd -dc disk1.raw.zst | atoll image import - disk1 --size 20G
  atoll image import disk1.full copy1                        a file of 'export --format changes'
  atoll image import disk1.diff copy1                        changes since a snapshot, which copy1 must have

Changes are imported into an image that has the snapshot that they start from and was not changed afterwards; the
image gets the later snapshot, too. If that is interrupted, '--discard-changes' starts over.

A new image cannot be used before it is whole. If the command is interrupted, repeat it with '--resume'.")]
pub struct ImportArguments {
    #[command(flatten)]
    pub data: DataArgument,
    /// The file; '-' for standard input
    pub file: PathBuf,
    /// The image, which is made unless changes since a snapshot are imported
    pub name: String,
    /// The size of the image: needed for raw bytes from standard input
    #[arg(long, value_parser = parse_size_bytes)]
    pub size: Option<u64>,
    /// The pool that holds its data [default: images]
    #[arg(long)]
    pub pool: Option<String>,
    /// Sealing of its blocks [default: on]
    #[arg(long, value_enum)]
    pub sealing: Option<SealingArgument>,
    /// Roll the image back to the snapshot first that the changes are since
    #[arg(long)]
    pub discard_changes: bool,
    /// Resume an interrupted import of the same file
    #[arg(long)]
    pub resume: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  atoll image cp disk1@monday disk1-copy
  atoll image cp disk1@monday disk1-cold --pool cold --sealing on

A copy does not depend on its source; 'atoll image clone' makes a dependent one at once. It cannot be used before it is
whole. If a copy of a snapshot is interrupted, repeat the command with '--resume'.")]
pub struct CopyArguments {
    #[command(flatten)]
    pub data: DataArgument,
    /// IMAGE or IMAGE@SNAPSHOT
    pub source: String,
    /// The name of the copy
    pub name: String,
    /// The pool that holds its data
    #[arg(long, default_value = POOL_IMAGES)]
    pub pool: String,
    /// Sealing of its blocks
    #[arg(long, value_enum, default_value = "on")]
    pub sealing: SealingArgument,
    /// Resume an interrupted copy of the same snapshot
    #[arg(long)]
    pub resume: bool,
}

const PART_BYTES: usize = 4 << 20;

impl ImportArguments {
    pub fn pool(&self) -> &str {
        self.pool.as_deref().unwrap_or(POOL_IMAGES)
    }

    pub fn is_sealed(&self) -> bool {
        self.sealing.unwrap_or(SealingArgument::On).is_on()
    }

    /// Refuses options that say nothing about an import of this kind.
    fn refuse(&self, kind: &str, options: &[&str]) -> anyhow::Result<()> {
        let given = [
            ("--size", self.size.is_some()),
            ("--pool", self.pool.is_some()),
            ("--sealing", self.sealing.is_some()),
            ("--discard-changes", self.discard_changes),
        ];
        match given.iter().find(|(option, is_given)| *is_given && options.contains(option)) {
            Some((option, _)) => bail!("{option} has no meaning for an import {kind}: leave it out"),
            None => Ok(()),
        }
    }
}

/// `atoll image import`.
pub fn import(arguments: &ImportArguments) -> anyhow::Result<()> {
    let access = ImageAccess::new(&arguments.data, TIMEOUT_MS)?;
    let from_stdin = arguments.file.as_os_str() == "-";
    let mut input: Box<dyn Read> = match from_stdin {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(open_file(&arguments.file)?),
    };
    let mut first = Vec::new();
    input.by_ref().take(8).read_to_end(&mut first)?;
    if first.starts_with(b"QFI\xfb") {
        ensure!(!from_stdin, "qcow2 cannot be read from standard input; give its file");
        ensure!(!arguments.resume, "an import of qcow2 cannot be resumed: leave --resume out to start over");
        arguments.refuse("of qcow2", &["--size", "--discard-changes"])?;
        let file = &arguments.file;
        return super::qemu::import(&access, file, &arguments.name, arguments.pool(), arguments.is_sealed());
    }
    let is_stream = StreamReader::<&[u8]>::is_stream(&first);
    let input = BufReader::with_capacity(PART_BYTES, std::io::Cursor::new(first).chain(input));
    let bytes = match is_stream {
        true => import_stream(&access, arguments, StreamReader::new(input)?)?,
        false => import_raw(&access, arguments, input)?,
    };
    print_line!("imported image '{}', {} with data", arguments.name, format_size(bytes));
    Ok(())
}

fn open_file(path: &Path) -> anyhow::Result<File> {
    File::open(path).with_context(|| format!("cannot open {}", path.display()))
}

fn import_raw(access: &ImageAccess, arguments: &ImportArguments, mut input: impl Read) -> anyhow::Result<u64> {
    let file_bytes = match arguments.file.as_os_str() == "-" {
        true => None,
        // Also of a device, whose metadata do not say it.
        false => Some(open_file(&arguments.file)?.seek(std::io::SeekFrom::End(0))?),
    };
    arguments.refuse("of raw bytes", &["--discard-changes"])?;
    let Some(size_bytes) = arguments.size.or(file_bytes.map(|bytes| bytes.next_multiple_of(BLOCK_BYTES as u64)))
    else {
        bail!("the size of standard input is unknown: give it with --size");
    };
    let source = match file_bytes {
        Some(bytes) => format!("a raw file of {bytes} bytes"),
        None => "raw bytes from standard input".into(),
    };
    let mut target = Target::begin(access, arguments, size_bytes, &source)?;
    let mut at = target.done_bytes();
    skip(&mut input, at)?;
    let progress = progress_bar("importing");
    let mut buffer = vec![0; PART_BYTES];
    let mut written = 0;
    loop {
        let length = read_full(&mut input, &mut buffer)?;
        if length == 0 {
            break;
        }
        ensure!(
            at + length as u64 <= size_bytes,
            "there is more than the {} of the image; remove it ('atoll image rm {}'), and give a larger --size",
            format_size(size_bytes),
            arguments.name
        );
        written += target.write_data(at, &buffer[..length])?;
        at += length as u64;
        target.note(at)?;
        progress(at.min(size_bytes), size_bytes);
    }
    progress(size_bytes, size_bytes);
    target.finish()?;
    Ok(written)
}

/// Reads exactly this many bytes; fewer are an error.
fn skip(input: &mut impl Read, bytes: u64) -> anyhow::Result<()> {
    let skipped = std::io::copy(&mut input.take(bytes), &mut std::io::sink())?;
    ensure!(
        skipped == bytes,
        "the file has {skipped} bytes, but {bytes} were imported before: this is another file"
    );
    Ok(())
}

fn read_full(input: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match input.read(&mut buffer[length..])? {
            0 => break,
            more => length += more,
        }
    }
    Ok(length)
}

fn import_stream(
    access: &ImageAccess,
    arguments: &ImportArguments,
    mut stream: StreamReader<impl Read>,
) -> anyhow::Result<u64> {
    let header = stream.header().clone();
    let name = &arguments.name[..];
    let mut target = if header.from.is_empty() {
        arguments.refuse("of a whole stream", &["--size", "--discard-changes"])?;
        let source = format!("changes up to the snapshot '{}', of {} bytes", header.to, header.size_bytes);
        Target::begin(access, arguments, header.size_bytes, &source)?
    } else {
        ensure!(
            !arguments.resume,
            "changes since a snapshot are imported again from there: give --discard-changes"
        );
        arguments.refuse("of changes", &["--size", "--pool", "--sealing"])?;
        prepare_for_changes(access, arguments, &header)?;
        Target::attach(access, name, "importing")?
    };
    let done_before = target.done_bytes();
    let progress = progress_bar("importing");
    let mut bytes = 0;
    while let Some(part) = stream.next_part()? {
        let end = match part {
            StreamPart::Data { offset, data } => {
                let end = offset + data.len() as u64;
                if end > done_before {
                    bytes += data.len() as u64;
                    // Also zeros among the data: something else may have been there.
                    target.write(offset, &data)?;
                }
                end
            }
            StreamPart::Zeros { offset, length } => {
                if offset + length > done_before {
                    target.write_zeros(offset, length)?;
                }
                offset + length
            }
        };
        target.note(end)?;
        progress(end.min(header.size_bytes - 1), header.size_bytes);
    }
    progress(header.size_bytes, header.size_bytes);
    target.finish()?;
    if !header.to.is_empty() {
        access.admin_call(|admin, client| async move {
            admin.take_snapshot(&client, name, &header.to).await.map(drop)
        })?;
    }
    Ok(bytes)
}

/// Checks that the image is unchanged since the snapshot that the changes start from.
fn prepare_for_changes(
    access: &ImageAccess,
    arguments: &ImportArguments,
    header: &StreamHeader,
) -> anyhow::Result<()> {
    let (name, from) = (&arguments.name[..], &header.from[..]);
    let (record, snapshot) = access.block_on_tokio(access.admin.get_snapshot(name, from))?;
    ensure!(
        record.snapshot(&header.to).is_none(),
        "image '{name}' has the snapshot '{}' already, so that these changes were imported before",
        header.to
    );
    let number = snapshot.number;
    let is_changed =
        access.admin_call(|admin, client| async move { admin.is_changed_since(&client, name, number).await })?;
    if is_changed && !arguments.discard_changes {
        bail!(
            "image '{name}' was changed since its snapshot '{from}'; --discard-changes rolls it back to the \
             snapshot, and later writes are lost"
        );
    }
    access.admin_call(|admin, client| async move {
        if is_changed {
            admin.roll_back(&client, name, from, &progress_bar("rolling back")).await?;
        }
        admin.resize(&client, name, header.size_bytes, true).await.map(drop)
    })
}

/// `atoll image cp`.
pub fn copy(arguments: &CopyArguments) -> anyhow::Result<()> {
    let access = ImageAccess::new(&arguments.data, TIMEOUT_MS)?;
    let identity = identity(&access, &arguments.source, arguments.resume)?;
    let source = open(&access, &arguments.source, "copying")?;
    let copied = Target::begin(&access, arguments, source.size_bytes(), &identity).and_then(|mut target| {
        let from = target.done_bytes();
        let bytes = for_each_data(&access, &source, from, |offset, data| {
            target.write_data(offset, data)?;
            target.note(offset + data.len() as u64)
        })?;
        target.finish()?;
        Ok(bytes)
    });
    access.admin_call(|_, _| source.close())?;
    let bytes = copied?;
    print_line!("copied '{}' to image '{}', {} with data", arguments.source, arguments.name, format_size(bytes));
    Ok(())
}

/// `atoll image sparsify`.
pub fn sparsify(data: &DataArgument, name: &str) -> anyhow::Result<()> {
    let access = ImageAccess::new(data, TIMEOUT_MS)?;
    let image = open(&access, name, "sparsifying")?;
    let mut freed = 0;
    let looked = for_each_data(&access, &image, 0, |offset, data| {
        let (blocks, _) = data.as_chunks::<BLOCK_BYTES>();
        let zeros: Vec<bool> = blocks.iter().map(|block| block.iter().all(|byte| *byte == 0)).collect();
        for (first, count) in runs(&zeros, true) {
            let (at, length) = (offset + (first * BLOCK_BYTES) as u64, (count * BLOCK_BYTES) as u64);
            access.admin_call(|_, _| async { image.writable()?.trim(at, length).await })?;
            freed += length;
        }
        Ok(())
    });
    access.admin_call(|_, _| image.close())?;
    looked?;
    print_line!("image '{name}' had {} of zeros, which take no space any more", format_size(freed));
    Ok(())
}
