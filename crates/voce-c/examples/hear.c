/* Hears a file, or, without one, what it says itself: text goes to a voice in pieces, its audio goes on to a recogniser as
 * it is made, and words are printed as soon as they are certain.
 *
 *     cc hear.c $(pkg-config --cflags --libs voce) -lpthread -o hear
 *     hear talk.wav
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <voce.h>

static int failed(const char *what) {
    fprintf(stderr, "%s: %s (%s)\n", what, voce_last_error(), voce_last_error_code());
    return 1;
}

/* Prints what is heard until the stream ends. */
static int print_events(voce_listening *stream) {
    for (;;) {
        const voce_event *event;
        voce_status status = voce_listening_next(stream, -1, &event);
        if (status == VOCE_STATUS_END) return 0;
        if (status != VOCE_STATUS_OK) return failed("listen");
        if (event->kind == VOCE_EVENT_KIND_WORD) printf("  %6.2f s  %s\n", event->start, event->text);
        if (event->kind == VOCE_EVENT_KIND_FINAL) printf("%s\n", event->text);
    }
}

struct talk {
    voce_speaker *speaker;
    voce_listening *ear;
    int result;
};

/* Speaks text that arrives in pieces, and passes the audio on. */
static void *talk(void *user) {
    struct talk *talk = user;
    talk->result = 1;
    voce_speech *speech = NULL;
    voce_speak_options options = {.size = sizeof options, .seed = 1};
    if (voce_speech_start(talk->speaker, NULL, &options, &speech) != VOCE_STATUS_OK) {
        failed("speak");
        voce_listening_cancel(talk->ear);
        return NULL;
    }
    const char *pieces[] = {"The weather ", "is fine ", "today."};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) voce_speech_push(speech, pieces[i]);
    voce_speech_finish(speech);
    voce_status status;
    const float *samples;
    size_t count;
    while ((status = voce_speech_next(speech, -1, &samples, &count)) == VOCE_STATUS_OK) {
        if (voce_listening_push(talk->ear, samples, count) != VOCE_STATUS_OK) break;
    }
    if (status == VOCE_STATUS_END) {
        voce_listening_finish(talk->ear);
        talk->result = 0;
    } else {
        failed("speak");
        voce_listening_cancel(talk->ear);
    }
    voce_speech_free(speech);
    return NULL;
}

static int hear_oneself(voce_listener *listener) {
    struct talk both = {NULL, NULL, 1};
    if (voce_speaker_open(NULL, NULL, &both.speaker) != VOCE_STATUS_OK) return failed("open");
    uint32_t rate = voce_speaker_sample_rate(both.speaker);
    voce_listen_options options = {.size = sizeof options, .silence_ms = 800, .max_ms = 30000};
    int result = 1;
    if (voce_listening_start(listener, rate, &options, &both.ear) != VOCE_STATUS_OK) {
        failed("listen");
    } else {
        pthread_t thread;
        if (pthread_create(&thread, NULL, talk, &both) == 0) {
            result = print_events(both.ear);
            pthread_join(thread, NULL);
            result |= both.result;
        }
    }
    voce_listening_free(both.ear);
    voce_speaker_free(both.speaker);
    return result;
}

int main(int argc, char **argv) {
    voce_listener *listener = NULL;
    if (voce_listener_open(NULL, NULL, &listener) != VOCE_STATUS_OK) return failed("open");
    int result;
    if (argc > 1) {
        voce_listening *stream = NULL;
        result = voce_listening_start_file(listener, argv[1], NULL, &stream) == VOCE_STATUS_OK ? print_events(stream)
                                                                                                : failed(argv[1]);
        voce_listening_free(stream);
    } else {
        result = hear_oneself(listener);
    }
    voce_listener_free(listener);
    return result;
}
