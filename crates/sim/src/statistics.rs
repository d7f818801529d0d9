//! Counts the events in runs: a run without events tests nothing.

macro_rules! statistics {
    ($($name:ident: $text:literal,)*) => {
        #[derive(Default, Clone, Debug)]
        pub struct Statistics {
            $(pub $name: u64,)*
        }

        impl Statistics {
            pub fn add(&mut self, other: &Statistics) {
                $(self.$name += other.$name;)*
            }

            /// Name, text for people, and number of everything that is counted.
            pub fn all(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), $text, self.$name),)*]
            }
        }
    };
}

statistics! {
    requests: "requests",
    retries: "retries",
    unknown_outcomes: "outcomes not known any more",
    clones: "clones",
    hostile: "requests against the rules",
    activations: "activations",
    takeovers: "take-overs",
    crashes: "crashes",
    breaks: "broken links",
    partitions: "partitions",
    pauses: "pauses",
    stopped_clocks: "pauses with the clock",
    wipes: "lost devices",
    forgotten: "devices that forgot",
    decisions: "decisions of operators",
    standing: "faults that stood",
    refusing_for_good: "stores that refused something for good",
    restores: "restored cluster states",
    forgotten_splits: "of them without a split",
    moves: "moves",
    splits: "splits",
    outages: "outages of cluster state",
    swaps_failed: "swaps lost",
    learners: "learners",
    lists: "lists of objects",
    backfill_reads: "objects read for others",
    whole_backfill_reads: "of them whole",
    unreadable_backfill_reads: "of them unreadable",
    further_parts: "further parts of objects",
    rollbacks: "histories rolled back",
    copy_reads: "copy reads",
    overwrites: "overwrites completed by members",
    unreadable_overwrites: "of them unreadable",
    corrupt_refusals: "refused as damaged",
    backlogged: "submissions that waited",
    refused: "submissions refused",
    loads: "loads",
    scrubs: "scrubs",
    scrub_repairs: "objects repaired by scrubs",
}
