//! The log of a daemon on standard error. An event is one line, whatever names of others are in it: a line that a
//! stranger has made up cannot look like one of ours.

use std::io::{self, Stderr, Write};

use atoll_terminal::visible_line;
use tracing_subscriber::fmt::MakeWriter;

/// Writes events to standard error.
pub struct LogLines;

/// Takes one event by each write, with the end of its line.
pub struct EventWriter<W>(W);

impl<'a> MakeWriter<'a> for LogLines {
    type Writer = EventWriter<Stderr>;

    fn make_writer(&'a self) -> Self::Writer {
        EventWriter(io::stderr())
    }
}

impl<W: Write> Write for EventWriter<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let mut line = visible_line(text.trim_end_matches('\n')).into_owned();
        line.push('\n');
        self.0.write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::layer;
    use tracing_subscriber::prelude::*;

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_line() {
        let kept = Kept::default();
        let writer = kept.clone();
        let log = layer().with_writer(move || EventWriter(writer.clone())).with_ansi(false);
        let name = "x\n2026-01-01T00:00:00Z  WARN security: forged\r\u{9b}2J";
        tracing::subscriber::with_default(tracing_subscriber::registry().with(log), || {
            tracing::warn!("record '{name}' is another's");
            tracing::warn!(%name, "a record is another's");
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.lines().all(|line| line.contains("\\u000a2026") && line.contains("\\u000d")), "{text}");
        assert!(!text.chars().any(|character| character.is_control() && character != '\n'), "{text:?}");
    }
}
