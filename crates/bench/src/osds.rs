//! Every OSD by itself: one object at a time on PGs whose primary it is, as ceph-gobench
//! does, to find the one that is slower than the others.
//!
//! A read is answered by the primary alone. A write is answered when all members have it, so a slow
//! OSD slows the writes of others as well: in a pool with one copy it does not.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use atoll_buffers::BLOCK_BYTES;
use atoll_client::{LocalClient, ObjectClient};
use atoll_types::{Mutation, ObjectName, OsdId, PoolId, WriteRequest};
use bytes::Bytes;
use serde::Serialize;

use crate::error::BenchError;
use crate::figures::{ClientMeasurement, Latency, LatencyHistogram};
use crate::load::{Done, Operations, Plan, Random, Timer, run_client};

/// Places of an object that are used alternately.
const PLACES: u64 = 64;
/// Ratio to the median of its class above which an OSD is slow.
const SLOW_RATIO: f64 = 1.5;

/// One OSD.
#[derive(Clone, Debug)]
pub struct OsdSubject {
    /// Its number.
    pub osd: OsdId,
    /// Its host.
    pub host: String,
    /// `ssd`, `hdd`, ...
    pub device_class: String,
    /// Objects that it is the primary of.
    pub objects: Vec<ObjectName>,
}

/// A run over all OSDs.
pub struct OsdsBench {
    /// The pool that the objects are in.
    pub pool: PoolId,
    /// The OSDs.
    pub osds: Vec<OsdSubject>,
    /// How long each is written to, and read from, in each round.
    pub duration: Duration,
    /// Rounds of all OSDs, so that a disturbance of the machine does not meet one of them alone.
    pub rounds: u32,
}

/// Latencies of one kind of operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OsdFigures {
    /// Operations a second, one at a time.
    pub iops: f64,
    /// Their latency.
    pub latency_us: Latency,
    /// Median latency relative to the median of all OSDs of the class.
    pub ratio: f64,
}

/// Result of one OSD.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OsdReport {
    /// Its number.
    pub osd: u32,
    /// Its host.
    pub host: String,
    /// `ssd`, `hdd`, ...
    pub device_class: String,
    /// Durable writes of 4 KiB.
    pub write: OsdFigures,
    /// Reads of 4 KiB.
    pub read: OsdFigures,
    /// True if it is much slower than others of its class.
    pub is_slow: bool,
}

/// Operations on the objects of one OSD.
struct OsdOperations<'a> {
    client: &'a LocalClient,
    pool: PoolId,
    objects: &'a [ObjectName],
    is_write: bool,
    payload: Bytes,
    random: RefCell<Random>,
}

impl OsdOperations<'_> {
    async fn write(&self, object: ObjectName, place: u64) -> Result<(), BenchError> {
        let length = self.payload.len() as u32;
        let mutations = vec![Mutation::Write { offset: place * BLOCK_BYTES as u64, length, seals: None }];
        let payload = self.payload.clone();
        let request = WriteRequest { object, conditions: Vec::new(), mutations, payload, payload_sealed: false };
        self.client.send_write(self.pool, request).await.map_err(failed)
    }
}

fn failed(error: atoll_client::ClientError) -> BenchError {
    BenchError::Cluster(error.to_string())
}

impl Operations for OsdOperations<'_> {
    async fn perform(&self) -> Result<Done, BenchError> {
        let (object, place) = {
            let mut random = self.random.borrow_mut();
            (self.objects[random.below(self.objects.len() as u64) as usize].clone(), random.below(PLACES))
        };
        let bytes = BLOCK_BYTES as u64;
        if self.is_write {
            self.write(object, place).await?;
            return Ok(Done { kind: "write", bytes, is_verified: false });
        }
        let read = self.client.read(self.pool, object, place * bytes, BLOCK_BYTES as u32).await;
        read.map(|_| Done { kind: "read", bytes, is_verified: false }).map_err(failed)
    }
}

impl OsdsBench {
    /// Measures all OSDs alternately. Objects are removed at the end. `progress` gets the completed turns and the
    /// number of all.
    pub async fn run(
        &self,
        client: &LocalClient,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Vec<OsdReport>, BenchError> {
        if self.osds.iter().any(|osd| osd.objects.is_empty()) || self.osds.is_empty() || self.rounds == 0 {
            return Err(BenchError::Invalid(
                "each OSD must be primary of a PG of the pool; use one with more".into(),
            ));
        }
        let outcome = self.measure(client, progress).await;
        for object in self.osds.iter().flat_map(|osd| &osd.objects) {
            let removed = client.change(self.pool, object.clone(), Vec::new(), vec![Mutation::Remove]).await;
            removed.map_err(failed)?;
        }
        Ok(self.report(&outcome?))
    }

    async fn measure(
        &self,
        client: &LocalClient,
        progress: &dyn Fn(u64, u64),
    ) -> Result<Vec<[Totals; 2]>, BenchError> {
        let timer = Timer::Local(client.runtime().clone());
        let payload = Bytes::from(Random::new(5).fill(BLOCK_BYTES));
        let mut totals: Vec<[Totals; 2]> = self.osds.iter().map(|_| Default::default()).collect();
        let done = Cell::new(0);
        for round in 0..self.rounds {
            for (osd, totals) in self.osds.iter().zip(&mut totals) {
                let operations = |is_write| OsdOperations {
                    client,
                    pool: self.pool,
                    objects: &osd.objects,
                    is_write,
                    payload: payload.clone(),
                    random: RefCell::new(Random::new(u64::from(round) + 1)),
                };
                let writes = operations(true);
                if round == 0 {
                    for object in &osd.objects {
                        // All that is read has been written before.
                        for place in 0..PLACES {
                            writes.write(object.clone(), place).await?;
                        }
                    }
                }
                totals[0].add(run_client(&writes, &self.plan(), &timer, &|| ()).await?)?;
                totals[1].add(run_client(&operations(false), &self.plan(), &timer, &|| ()).await?)?;
                done.set(done.get() + 1);
                progress(done.get(), u64::from(self.rounds) * self.osds.len() as u64);
            }
        }
        Ok(totals)
    }

    fn plan(&self) -> Plan {
        Plan {
            depth: 1,
            rate_per_second: None,
            warm_up: self.duration / 10,
            duration: self.duration,
            bytes_max: None,
        }
    }

    fn report(&self, totals: &[[Totals; 2]]) -> Vec<OsdReport> {
        let mut medians: BTreeMap<(&str, usize), Vec<u64>> = BTreeMap::new();
        for (osd, totals) in self.osds.iter().zip(totals) {
            for (kind, total) in totals.iter().enumerate() {
                medians.entry((&osd.device_class, kind)).or_default().push(total.latencies.at_quantile_us(0.5));
            }
        }
        let figures = |osd: &OsdSubject, totals: &[Totals; 2], kind: usize| {
            totals[kind].figures(median(&medians[&(osd.device_class.as_str(), kind)]))
        };
        let report = |(osd, totals): (&OsdSubject, &[Totals; 2])| {
            let (write, read) = (figures(osd, totals, 0), figures(osd, totals, 1));
            OsdReport {
                osd: osd.osd.0,
                host: osd.host.clone(),
                device_class: osd.device_class.clone(),
                is_slow: write.ratio >= SLOW_RATIO || read.ratio >= SLOW_RATIO,
                write,
                read,
            }
        };
        self.osds.iter().zip(totals).map(report).collect()
    }
}

/// Sum of all rounds of one OSD.
#[derive(Default)]
struct Totals {
    operations: u64,
    latencies: LatencyHistogram,
    seconds: f64,
}

impl Totals {
    fn add(&mut self, measured: ClientMeasurement) -> Result<(), BenchError> {
        if let Some(error) = measured.first_error {
            return Err(BenchError::Cluster(error));
        }
        self.operations += measured.operations();
        self.latencies.add(&measured.histogram());
        self.seconds += measured.seconds;
        Ok(())
    }

    fn figures(&self, median_of_class_us: u64) -> OsdFigures {
        let latency_us = self.latencies.latency();
        let ratio = latency_us.p50 as f64 / median_of_class_us.max(1) as f64;
        OsdFigures {
            iops: crate::figures::round(self.operations as f64 / self.seconds.max(f64::MIN_POSITIVE)),
            ratio: (ratio * 100.0).round() / 100.0,
            latency_us,
        }
    }
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    // Of an even number the lower one, so that of two the slower one is noticed.
    sorted[(sorted.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn osd(number: u32, device_class: &str) -> OsdSubject {
        OsdSubject { osd: OsdId(number), host: "h".into(), device_class: device_class.into(), objects: Vec::new() }
    }

    fn totals(write_us: u64, read_us: u64) -> [Totals; 2] {
        [write_us, read_us].map(|latency_us| {
            let mut totals = Totals { operations: 100, seconds: 2.0, ..Totals::default() };
            totals.latencies.record_us(latency_us, 100);
            totals
        })
    }

    #[test]
    fn the_slow_one_is_found_within_its_class() {
        let osds = vec![osd(0, "ssd"), osd(1, "ssd"), osd(2, "ssd"), osd(3, "hdd"), osd(4, "hdd")];
        let bench = OsdsBench { pool: PoolId(1), osds, duration: Duration::from_secs(1), rounds: 1 };
        let totals =
            [totals(300, 100), totals(310, 190), totals(320, 110), totals(9000, 8000), totals(9100, 8100)];
        let report = bench.report(&totals);
        let slow: Vec<u32> = report.iter().filter(|osd| osd.is_slow).map(|osd| osd.osd).collect();
        assert_eq!(slow, [1], "{report:?}");
        assert_eq!((report[1].read.ratio, report[0].write.iops), (1.73, 50.0));
    }
}
