//! Data that one operation moves, from how the system works: the bytes that must go over the network and to
//! drives. The measured rest (headers, logs, indexes) comes from the calibration.

use super::cluster::{Operation, Redundancy};

/// Resources of one operation on all hosts together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Demand {
    pub osd_cpu_us: f64,
    pub gateway_cpu_us: f64,
    /// Bytes that hosts receive and send for OSDs.
    pub osd_in_bytes: f64,
    pub osd_out_bytes: f64,
    /// Bytes that gateways receive and send.
    pub gateway_in_bytes: f64,
    pub gateway_out_bytes: f64,
    pub drive_read_bytes: f64,
    pub drive_write_bytes: f64,
    pub drive_reads: f64,
    pub drive_writes: f64,
    pub synced_writes: f64,
}

/// How an object is cut up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pieces {
    /// Bytes of each piece.
    pub bytes: f64,
    /// Pieces that a read needs.
    pub data: f64,
    /// Pieces that a write makes.
    pub all: f64,
}

impl Pieces {
    /// An erasure code cuts into chunks: data shorter than a chunk is one piece, with all of the parity.
    pub fn of(redundancy: Redundancy, size_bytes: u64, chunk_bytes: u64) -> Pieces {
        let size = size_bytes as f64;
        match redundancy {
            Redundancy::Copies(copies) => Pieces { bytes: size, data: 1.0, all: f64::from(copies) },
            Redundancy::Erasure { data, parity } => {
                let data = u64::from(data).min(size_bytes.div_ceil(chunk_bytes)) as f64;
                Pieces { bytes: size / data, data, all: data + f64::from(parity) }
            }
        }
    }
}

/// Bytes and drive operations; no CPU time.
///
/// Clients of images talk to the primary OSD, those of objects to any gateway, which talks to the primary.
/// The primary sends pieces to the other members, or gets them from there; members are on different hosts.
/// A gateway that is on an OSD host is beside the primary as often as chance has it.
pub(super) fn structure(
    operation: Operation,
    size_bytes: u64,
    pieces: Pieces,
    hosts: u32,
    has_gateway_hosts: bool,
) -> Demand {
    let size = size_bytes as f64;
    let mut demand = Demand::default();
    // Between a client or gateway and the primary.
    let to_primary = match operation.is_object() {
        true if !has_gateway_hosts => size * (1.0 - 1.0 / f64::from(hosts)),
        _ => size,
    };
    let (client_side, primary_side) = if operation.is_object() { (size, to_primary) } else { (0.0, 0.0) };
    if operation.is_write() {
        let to_members = (pieces.all - 1.0) * pieces.bytes;
        demand.gateway_in_bytes = client_side;
        demand.gateway_out_bytes = primary_side;
        demand.osd_in_bytes = to_primary + to_members;
        demand.osd_out_bytes = to_members;
        demand.drive_write_bytes = pieces.all * pieces.bytes;
        demand.drive_writes = pieces.all;
    } else {
        let from_members = (pieces.data - 1.0) * pieces.bytes;
        demand.gateway_in_bytes = primary_side;
        demand.gateway_out_bytes = client_side;
        demand.osd_in_bytes = from_members;
        demand.osd_out_bytes = to_primary + from_members;
        // Nothing is taken from a cache.
        demand.drive_read_bytes = size;
        demand.drive_reads = pieces.data;
    }
    demand
}

/// How often an operation goes over the network and to a drive, one time after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Path {
    pub round_trips: f64,
    pub drive_reads: f64,
    pub synced_writes: f64,
}

impl Path {
    pub fn of(operation: Operation, pieces: Pieces) -> Path {
        // From other members, if one does not have all of it.
        let gather = f64::from(u8::from(pieces.data > 1.0));
        match (operation.is_object(), operation.is_write()) {
            (false, false) => Path { round_trips: 1.0 + gather, drive_reads: 1.0, synced_writes: 0.0 },
            (false, true) => Path { round_trips: 2.0, drive_reads: 0.0, synced_writes: 1.0 },
            // To the gateway, from there to the index, then to the data.
            (true, false) => Path { round_trips: 3.0 + gather, drive_reads: 1.0, synced_writes: 0.0 },
            // To the gateway, a replicated write of the data, then one of the index.
            (true, true) => Path { round_trips: 5.0, drive_reads: 0.0, synced_writes: 2.0 },
        }
    }
}
