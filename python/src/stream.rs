//! An answer in progress, as Python sees it.

use crate::answers::EventSink;
use crate::errors::{closed, of_engine};
use crate::output::{AnswerFields, Pieces, TokenFields};
use forerun::text::Tokenizer;
use forerun::{AnswerEvent, Canceller, ForerunError};
use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a thread that waits for an event lets Python handle signals.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);

type Events = Receiver<Result<AnswerEvent, ForerunError>>;

/// An answer in progress.
#[pyclass(frozen, module = "forerun._forerun")]
pub(crate) struct Stream {
    canceller: Canceller,
    state: Mutex<Reader>,
}

struct Reader {
    /// `None` after the last event.
    events: Option<Events>,
    pieces: Pieces,
    /// When Python last handled signals.
    looked: Instant,
}

/// An event: the fields of a token, a text, or those of the whole answer.
#[derive(IntoPyObject)]
#[expect(clippy::large_enum_variant, reason = "an event becomes a Python object at once")]
enum Event {
    Token(TokenFields),
    Text(String),
    Finished(AnswerFields),
}

impl Stream {
    /// Creates a stream and the sink of its events. `on_event` is called after each event with
    /// `every`, and in any case after the last one. It must not wait.
    pub(crate) fn new(
        tokenizer: &Arc<Tokenizer>,
        on_event: Option<Py<PyAny>>,
        every: bool,
    ) -> (Self, EventSink) {
        let (sender, events) = channel();
        let canceller = Canceller::new();
        let pieces = Pieces::new(Arc::clone(tokenizer), canceller.clone());
        let state = Mutex::new(Reader { events: Some(events), pieces, looked: Instant::now() });
        let (stream, canceller) = (Self { canceller: canceller.clone(), state }, canceller);
        let call: Box<dyn Fn() + Send> = match on_event {
            None => Box::new(|| ()),
            Some(callback) => Box::new(move || {
                // Python may be shutting down, or the event loop be closed. Then nobody waits for
                // the answer.
                let called = Python::try_attach(|py| callback.call0(py).is_ok());
                if called != Some(true) {
                    canceller.cancel();
                }
            }),
        };
        (stream, EventSink::new(sender, call, every))
    }

    /// Returns what cancels the answer.
    pub(crate) fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Reader> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next event. Signals are handled meanwhile, also if events come without a
    /// pause.
    fn wait(&self, py: Python<'_>) -> PyResult<Option<AnswerEvent>> {
        loop {
            self.handle_signals(py)?;
            let received = py.detach(|| match &self.lock().events {
                None => Ok(None),
                Some(events) => events.recv_timeout(LOOK_EVERY).map(Some),
            });
            match received {
                Ok(None) => return Ok(None),
                Ok(Some(event)) => return self.ended(event).map(Some),
                Err(RecvTimeoutError::Disconnected) => return Err(closed()),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Lets Python handle signals, if it has not for [`LOOK_EVERY`]. A signal that raises an
    /// exception cancels the answer.
    fn handle_signals(&self, py: Python<'_>) -> PyResult<()> {
        let is_due = py.detach(|| {
            let looked = &mut self.lock().looked;
            let is_due = looked.elapsed() >= LOOK_EVERY;
            if is_due {
                *looked = Instant::now();
            }
            is_due
        });
        match is_due {
            true => py.check_signals().inspect_err(|_| self.canceller.cancel()),
            false => Ok(()),
        }
    }

    /// Ends the stream after its last event.
    fn ended(&self, event: Result<AnswerEvent, ForerunError>) -> PyResult<AnswerEvent> {
        if matches!(event, Ok(AnswerEvent::Finished(_)) | Err(_)) {
            self.lock().events = None;
        }
        event.map_err(|error| of_engine(&error))
    }

    fn read(&self, event: AnswerEvent) -> Event {
        let pieces = &mut self.lock().pieces;
        match event {
            AnswerEvent::Token(token) => Event::Token(pieces.token(token)),
            AnswerEvent::Text(text) => {
                pieces.text(&text);
                Event::Text(text)
            }
            AnswerEvent::Finished(answer) => Event::Finished(pieces.answer(*answer)),
        }
    }
}

#[pymethods]
impl Stream {
    /// Waits for the next event. Raises StopIteration after the last one.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.wait(py)? {
            Some(event) => self.read(event).into_pyobject(py),
            None => Err(PyStopIteration::new_err(())),
        }
    }

    /// Returns the next event, or None if there is none yet. Raises StopIteration after the last
    /// one.
    fn next_now<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let received = match &self.lock().events {
            None => return Err(PyStopIteration::new_err(())),
            Some(events) => events.try_recv(),
        };
        match received {
            Ok(event) => self.read(self.ended(event)?).into_pyobject(py).map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(closed()),
        }
    }

    /// Waits for the whole answer, and returns it without the events before.
    fn result(&self, py: Python<'_>) -> PyResult<AnswerFields> {
        while let Some(event) = self.wait(py)? {
            if let Event::Finished(answer) = self.read(event) {
                return Ok(answer);
            }
        }
        Err(PyStopIteration::new_err(()))
    }

    /// Ends the answer with the tokens that it has. The event with the whole answer follows.
    fn cancel(&self) {
        self.canceller.cancel();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.canceller.cancel();
    }
}
