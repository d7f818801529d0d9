//! Commands on an image.

use atoll_image::{ImageError, OpenImage};

use crate::protocol::{IoKind, Response, Status};

/// Carries out a command. Every acknowledged write is durable on all members, so a flush has nothing left to do.
pub(crate) async fn perform(device: &OpenImage, kind: &IoKind) -> Result<Response, ImageError> {
    match kind {
        IoKind::Read(range) => return device.read(range.offset, range.length as u32).await.map(Response::data),
        IoKind::Write { offset, data } => device.writable()?.write(*offset, data).await?,
        IoKind::Flush => {}
        IoKind::Compare { offset, expected } => {
            if device.read(*offset, expected.len() as u32).await? != *expected {
                return Ok(Response::of(Status::CompareFailure));
            }
        }
        IoKind::CompareAndWrite { offset, expected, data, .. } => {
            if !device.writable()?.compare_and_write(*offset, expected, data).await? {
                return Ok(Response::of(Status::CompareFailure));
            }
        }
        IoKind::WriteZeroes(range) => device.writable()?.write_zeroes(range.offset, range.length).await?,
        IoKind::Trim(ranges) => {
            let image = device.writable()?;
            for range in ranges {
                image.trim(range.offset, range.length).await?;
            }
        }
    }
    Ok(Response::of(Status::Success))
}

/// Returns the status for a host on an error.
pub(crate) fn status_of(error: &ImageError) -> Status {
    match error {
        _ if error.is_no_space() => Status::CapacityExceeded,
        ImageError::Invalid(_) => Status::LbaOutOfRange,
        ImageError::ReadOnly(_) => Status::WriteProtected,
        // Another gateway has it, and what was sent here was not done: the host may try that path.
        ImageError::Lost(_) => Status::AnaInaccessible,
        _ => Status::InternalError,
    }
}
