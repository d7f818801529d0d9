//! Collecting figures: of this host's processes again and again, and of all hosts for an answer.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use atoll_coordinator::unix_ms;
use serde_json::{Value, json};

use super::{Figures, HostFigures, Samples, Wanted, joined, rates};
use crate::hosts::ask_processes;
use crate::shared::Shared;

/// How often processes are asked, in seconds: all seconds between have the same values.
const STEP_SECONDS: u64 = 2;
/// Pause before a silent host is asked again: the console asks every two seconds.
const SILENT_PAUSE: Duration = Duration::from_secs(15);

impl Figures {
    /// Asks all processes of this host again and again, for as long as the process lives.
    pub async fn keep(shared: Arc<Shared>) {
        let mut before: Option<Samples> = None;
        let mut ticks = tokio::time::interval(Duration::from_secs(STEP_SECONDS));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let host = shared.cluster.host_name();
        loop {
            ticks.tick().await;
            let begun_unix_ms = unix_ms();
            let told = ask_processes::<String>(&shared.directory, &shared.processes()).await.told;
            let told = told.into_iter().map(|(process, text)| (host.clone(), process, text));
            let now = Samples::read(begun_unix_ms, told.collect());
            if let Some(before) = &before {
                shared.figures.add(before.unix_ms / 1_000, now.unix_ms / 1_000, rates(before, &now));
            }
            before = Some(now);
        }
    }

    /// The schema `Figures` of the API: of all hosts.
    pub async fn tell(&self, shared: &Shared, query: &[(String, String)]) -> Value {
        let now_unix_ms = unix_ms();
        let wanted = Wanted::of(query, now_unix_ms);
        let since = query.iter().rev().find(|(name, _)| name == "since_unix_ms");
        let since = since.and_then(|(_, since)| since.parse::<u64>().ok()).map(|since| since / 1_000);
        let (mut others, mut unanswered) = shared.others().await;
        unanswered.extend_from_slice(others.untold());
        {
            let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
            silent.retain(|host, (at, _)| at.elapsed() < SILENT_PAUSE && others.names().contains(&&host[..]));
            unanswered.extend(silent.values().map(|(_, unanswered)| unanswered.clone()));
            others.leave_out(|host| silent.contains_key(host));
        }
        let route = format!("/figures?{}", wanted.query());
        let (told, failed) = others.ask::<HostFigures>(&shared.directory, &route).await;
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        for failed in failed {
            silent.extend(failed.host.iter().map(|host| (host.clone(), (Instant::now(), failed.clone()))));
            unanswered.push(failed);
        }
        drop(silent);
        unanswered.sort();
        let told = told.into_iter().map(|(_, figures)| figures.by_clock(now_unix_ms)).collect();
        let mut document = joined(self.own(&wanted, now_unix_ms), told, since);
        document["unanswered"] = json!(unanswered);
        document
    }
}
