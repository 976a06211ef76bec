/* libvoce: real-time speech. Made by cbindgen from crates/voce-c/src: do not edit.
 *
 * Every function that can fail returns a voce_status; voce_last_error() has the text for people and voce_last_error_code()
 * a short name for programs, both of the calling thread. Texts are UTF-8. Structs of options begin with their size: set it,
 * and everything else to zero, as in
 *
 *     voce_speak_options options = {.size = sizeof options, .voice = "alba"};
 *
 * docs/c-api.md has examples and the rules about threads.
 */

#ifndef VOCE_H
#define VOCE_H

#include <stddef.h>
#include <stdint.h>

// How a call went. Negative is an error, of which `voce_last_error` has the text.
typedef enum {
  // It went well.
  VOCE_STATUS_OK = 0,
  // The stream has ended: nothing more comes.
  VOCE_STATUS_END = 1,
  // Nothing has come within the time given.
  VOCE_STATUS_TIMEOUT = 2,
  // A pointer is null, a text is not UTF-8, or a struct has no size.
  VOCE_STATUS_BAD_ARGUMENT = -1,
  // The request makes no sense, or not for this model.
  VOCE_STATUS_BAD_REQUEST = -2,
  // A model, a voice or a file is not here.
  VOCE_STATUS_NOT_FOUND = -3,
  // The files of a model cannot be used.
  VOCE_STATUS_BAD_MODEL = -4,
  // Audio cannot be read.
  VOCE_STATUS_BAD_AUDIO = -5,
  // Every slot is taken: try again later.
  VOCE_STATUS_BUSY = -6,
  // There is no memory for it on the device.
  VOCE_STATUS_NO_ROOM = -7,
  // The device or the CPU cannot do it.
  VOCE_STATUS_DEVICE = -8,
  // The stream or the model has stopped.
  VOCE_STATUS_STOPPED = -9,
  // The caller cancelled it.
  VOCE_STATUS_CANCELLED = -10,
  // A file cannot be read or written.
  VOCE_STATUS_IO = -11,
  // A fault of the library.
  VOCE_STATUS_INTERNAL = -12,
} voce_status;

// What an event tells.
typedef enum {
  // The current utterance so far; its end may still change.
  VOCE_EVENT_KIND_PARTIAL = 0,
  // A word that will not change.
  VOCE_EVENT_KIND_WORD = 1,
  // A whole utterance.
  VOCE_EVENT_KIND_FINAL = 2,
  // The utterance ended here; its final comes next.
  VOCE_EVENT_KIND_ENDPOINT = 3,
} voce_event_kind;

// A model that hears. Any thread may use it, several at once.
typedef struct voce_listener voce_listener;

// A stream of events. One thread may push audio while another reads events, and any may cancel.
typedef struct voce_listening voce_listening;

// A model that speaks. Any thread may use it, several at once.
typedef struct voce_speaker voce_speaker;

// A stream of audio. One thread may push text while another reads audio, and any may cancel.
typedef struct voce_speech voce_speech;

// A model that holds conversations. Any thread may use it, several at once.
typedef struct voce_talker voce_talker;

// A conversation. One thread may push audio while another reads what is said, and any may cancel.
typedef struct voce_talking voce_talking;

// How a model is opened. Set `size` to its sizeof and everything else to zero, then what differs.
typedef struct {
  // Bytes of this struct.
  size_t size;
  // Voce's own folder; null for the one of the environment (`VOCE_HOME`).
  const char *store;
  // `auto`, `cpu`, `cuda` or `cuda:N`; null is `auto`.
  const char *device;
  // `auto`, `f32`, `bf16`, `int8`, `int4` or `fp8`; null is `auto`.
  const char *precision;
  // Threads; 0 chooses.
  uint32_t threads;
  // Streams that run side by side; 0 chooses.
  uint32_t slots;
} voce_model_options;

// How audio is heard. Set `size` to its sizeof and everything else to zero, then what differs.
typedef struct {
  // Bytes of this struct.
  size_t size;
  // The language, for models that take one.
  const char *language;
  // Milliseconds of audio per step, one of the model's; 0 is its own.
  uint32_t chunk_ms;
  // Hypotheses kept; 0 and 1 take the best at each step.
  uint32_t beam;
  // Milliseconds of silence that end an utterance; 0 is never.
  uint32_t silence_ms;
  // Milliseconds of the longest utterance; 0 is no limit.
  uint32_t max_ms;
  // Not 0: tell what is not yet certain.
  int32_t partials;
} voce_listen_options;

// A word. Times are seconds of audio from the stream's start.
typedef struct {
  // As the model spells it.
  const char *text;
  // Start.
  double start;
  // End.
  double end;
  // How sure the model is, 0 to 1.
  float confidence;
} voce_word;

// Something heard. It and all that it points to are valid until the next call that reads its stream.
typedef struct {
  // What it tells.
  voce_event_kind kind;
  // The text of the utterance or of the word; of an endpoint the reason: `silence`, `length`, `forced`, `token`, `pause`.
  const char *text;
  // Start, in seconds of audio.
  double start;
  // End, in seconds of audio.
  double end;
  // The words of an utterance.
  const voce_word *words;
  // How many there are.
  size_t word_count;
} voce_event;

// How a text is spoken. Set `size` to its sizeof and everything else to zero, then what differs.
typedef struct {
  // Bytes of this struct.
  size_t size;
  // A voice by name, a `.safetensors` file, or a recording to clone; null is the model's own.
  const char *voice;
  // The language of the text, for models of several; null is the model's own.
  const char *language;
  // How to speak, in words, for models that can be told.
  const char *instruct;
  // The seed: the same one gives the same audio.
  uint64_t seed;
  // Sampling temperature; 0 is the model's own (`greedy` takes the best of everything).
  float temperature;
  // Not 0: take the best of everything that is drawn.
  int32_t greedy;
  // Not 0: speak numbers, dates and abbreviations as they are written.
  int32_t no_normalize;
  // Frames at most; 0 is no limit.
  uint32_t max_frames;
} voce_speak_options;

// Takes audio: `count` samples, mono, -1 to 1, valid during the call. Not 0 stops the speech. It must not throw.
typedef int (*voce_audio_callback)(const float *samples, size_t count, void *user);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The text of the last error on this thread, for people; empty before the first. Valid until the next error on this
// thread.
const char *voce_last_error(void);

// The short name of the last error on this thread, for programs, such as `unknown_voice`; empty before the first. Valid
// until the next error on this thread.
const char *voce_last_error_code(void);

// The version of the library.
const char *voce_version(void);

// Frees a string that this library has given to be freed. Null is allowed.
//
// # Safety
// `string` is null or came from this library to be freed, and is not used again.
void voce_string_free(char *string);

// Opens a model that hears. `model` is a name, a folder, a `.nemo` file or `owner/repo`; null is the best that was pulled,
// else the one inside the library. `options` may be null. To be freed by `voce_listener_free`.
//
// # Safety
// Texts end with a zero; `options` has the size that it says.
voce_status voce_listener_open(const char *model,
                               const voce_model_options *options,
                               voce_listener **listener);

// Samples per second that the model takes; 0 for a null pointer. Audio of other rates is resampled.
uint32_t voce_listener_sample_rate(const voce_listener *listener);

// Frees a listener; streams under way go on. Null is allowed.
void voce_listener_free(voce_listener *listener);

// Hears a file of any common format and gives its text, to be freed by `voce_string_free`. `options` may be null. For
// words, times and a way to cancel see `voce_listening_start_file`.
//
// # Safety
// Texts end with a zero; `options` has the size that it says.
voce_status voce_hear_file(const voce_listener *listener,
                           const char *path,
                           const voce_listen_options *options,
                           char **text);

// Hears samples (mono, -1 to 1, `sample_rate` of them a second) and gives their text, to be freed by `voce_string_free`.
// `options` may be null.
//
// # Safety
// `samples` points to `count` floats; `options` has the size that it says.
voce_status voce_hear_samples(const voce_listener *listener,
                              const float *samples,
                              size_t count,
                              uint32_t sample_rate,
                              const voce_listen_options *options,
                              char **text);

// Starts to hear audio that comes by `voce_listening_push`, with `sample_rate` samples a second; 0 is the model's.
// `options` may be null. To be freed by `voce_listening_free`.
//
// # Safety
// `options` has the size that it says, and its texts end with a zero.
voce_status voce_listening_start(const voce_listener *listener,
                                 uint32_t sample_rate,
                                 const voce_listen_options *options,
                                 voce_listening **listening);

// Starts to hear a file of any common format. `options` may be null. To be freed by `voce_listening_free`.
//
// # Safety
// Texts end with a zero; `options` has the size that it says.
voce_status voce_listening_start_file(const voce_listener *listener,
                                      const char *path,
                                      const voce_listen_options *options,
                                      voce_listening **listening);

// Adds audio: mono, -1 to 1. Waits while ten seconds of it are waiting.
//
// # Safety
// `samples` points to `count` floats.
voce_status voce_listening_push(const voce_listening *listening, const float *samples, size_t count);

// Ends the utterance here: its final comes without waiting for more audio.
voce_status voce_listening_end_utterance(const voce_listening *listening);

// No more audio comes: the stream ends once all of it was heard.
voce_status voce_listening_finish(const voce_listening *listening);

// Waits for the next event, `timeout_ms` at most: negative is for ever, and 0 does not wait. `VOCE_STATUS_OK` with an
// event, which is valid until the next call on this stream; `VOCE_STATUS_END` after the last; `VOCE_STATUS_TIMEOUT`.
voce_status voce_listening_next(const voce_listening *listening, int32_t timeout_ms, const voce_event **event);

// Stops hearing, from any thread: whoever waits for it gets `VOCE_STATUS_CANCELLED`.
voce_status voce_listening_cancel(const voce_listening *listening);

// Stops and frees a stream that no thread uses any more. Null is allowed.
void voce_listening_free(voce_listening *listening);

// Opens a model that speaks. `model` is a name, a folder or `owner/repo`; null is the best that was pulled, else the one
// inside the library. `options` may be null. To be freed by `voce_speaker_free`.
//
// # Safety
// Texts end with a zero; `options` has the size that it says.
voce_status voce_speaker_open(const char *model,
                              const voce_model_options *options,
                              voce_speaker **speaker);

// Samples per second of its audio; 0 for a null pointer.
uint32_t voce_speaker_sample_rate(const voce_speaker *speaker);

// The names of its voices, a line each. To be freed by `voce_string_free`.
voce_status voce_speaker_voices(const voce_speaker *speaker, char **names);

// Frees a speaker; streams under way go on. Null is allowed.
void voce_speaker_free(voce_speaker *speaker);

// Speaks a text and gives its audio to `callback`, on this thread, until all of it was given. `options` may be null.
// `VOCE_STATUS_CANCELLED` if the callback stopped it.
//
// # Safety
// Texts end with a zero; `options` has the size that it says; `user` is the callback's business.
voce_status voce_speak(const voce_speaker *speaker,
                       const char *text,
                       const voce_speak_options *options,
                       voce_audio_callback callback,
                       void *user);

// Starts to speak. With a null `text`, text comes by `voce_speech_push` and ends with `voce_speech_finish`. `options` may
// be null. To be freed by `voce_speech_free`.
//
// # Safety
// Texts end with a zero; `options` has the size that it says.
voce_status voce_speech_start(const voce_speaker *speaker,
                              const char *text,
                              const voce_speak_options *options,
                              voce_speech **speech);

// Adds text; a word may come in pieces. Waits while much text is waiting to be spoken, and nobody reads the audio.
//
// # Safety
// `text` ends with a zero.
voce_status voce_speech_push(const voce_speech *speech, const char *text);

// No more text comes: the stream ends once all of it was spoken.
voce_status voce_speech_finish(const voce_speech *speech);

// Waits for the next audio, `timeout_ms` at most: negative is for ever, and 0 does not wait. `VOCE_STATUS_OK` with
// samples, which are valid until the next call on this stream; `VOCE_STATUS_END` after the last; `VOCE_STATUS_TIMEOUT`.
voce_status voce_speech_next(const voce_speech *speech, int32_t timeout_ms, const float **samples, size_t *count);

// Stops the speech, from any thread: whoever waits for it gets `VOCE_STATUS_CANCELLED`.
voce_status voce_speech_cancel(const voce_speech *speech);

// Stops and frees a stream that no thread uses any more. Null is allowed.
void voce_speech_free(voce_speech *speech);

// Opens a model that holds conversations, by name or folder. `options` may be null. To be freed by `voce_talker_free`.
//
// # Safety
// Texts end with a zero; `options` has the size that it says.
voce_status voce_talker_open(const char *model, const voce_model_options *options, voce_talker **talker);

// Samples per second, in and out; 0 for a null pointer.
uint32_t voce_talker_sample_rate(const voce_talker *talker);

// Frees a talker; conversations under way go on. Null is allowed.
void voce_talker_free(voce_talker *talker);

// Begins a conversation, with the seed of what is drawn. To be freed by `voce_talking_free`.
voce_status voce_talking_start(const voce_talker *talker, uint64_t seed, voce_talking **talking);

// Adds what the user says: mono, -1 to 1, at the model's sample rate. Waits while ten seconds of it are waiting.
//
// # Safety
// `samples` points to `count` floats.
voce_status voce_talking_push(const voce_talking *talking, const float *samples, size_t count);

// No more audio comes: the conversation ends once all of it was heard.
voce_status voce_talking_finish(const voce_talking *talking);

// Waits for what the model says next, `timeout_ms` at most: negative is for ever, and 0 does not wait. `VOCE_STATUS_OK`
// with samples, or with a text and no samples, valid until the next call on this conversation; `VOCE_STATUS_END`;
// `VOCE_STATUS_TIMEOUT`.
voce_status voce_talking_next(const voce_talking *talking,
                              int32_t timeout_ms,
                              const float **samples,
                              size_t *count,
                              const char **text);

// Ends the conversation, from any thread: whoever waits for it gets `VOCE_STATUS_CANCELLED`.
voce_status voce_talking_cancel(const voce_talking *talking);

// Ends and frees a conversation that no thread uses any more. Null is allowed.
void voce_talking_free(voce_talking *talking);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* VOCE_H */
