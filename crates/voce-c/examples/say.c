/* Speaks a text into a WAV file as the audio is made: say "Hello there." hello.wav
 *
 *     cc say.c $(pkg-config --cflags --libs voce) -o say
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <voce.h>

static void put(FILE *file, uint32_t value, int bytes) {
    for (int i = 0; i < bytes; i++) fputc((int)(value >> (8 * i) & 255), file);
}

/* A header of 16-bit mono audio. */
static void header(FILE *file, uint32_t rate, uint32_t samples) {
    fputs("RIFF", file);
    put(file, 36 + 2 * samples, 4);
    fputs("WAVEfmt ", file);
    put(file, 16, 4);
    put(file, 1, 2);
    put(file, 1, 2);
    put(file, rate, 4);
    put(file, 2 * rate, 4);
    put(file, 2, 2);
    put(file, 16, 2);
    fputs("data", file);
    put(file, 2 * samples, 4);
}

struct sink {
    FILE *file;
    uint32_t samples;
};

/* Called with each piece of audio; anything but 0 would stop the speech. */
static int write_audio(const float *samples, size_t count, void *user) {
    struct sink *sink = user;
    for (size_t i = 0; i < count; i++) {
        float s = samples[i] < -1 ? -1 : samples[i] > 1 ? 1 : samples[i];
        put(sink->file, (uint16_t)(int16_t)(s * 32767), 2);
    }
    sink->samples += (uint32_t)count;
    return ferror(sink->file);
}

static int failed(const char *what) {
    fprintf(stderr, "%s: %s (%s)\n", what, voce_last_error(), voce_last_error_code());
    return 1;
}

int main(int argc, char **argv) {
    const char *text = argc > 1 ? argv[1] : "Hello there.";
    const char *path = argc > 2 ? argv[2] : "hello.wav";

    voce_speaker *speaker = NULL;
    if (voce_speaker_open(NULL, NULL, &speaker) != VOCE_STATUS_OK) return failed("open");
    uint32_t rate = voce_speaker_sample_rate(speaker);

    struct sink sink = {fopen(path, "wb"), 0};
    if (!sink.file) {
        perror(path);
        voce_speaker_free(speaker);
        return 1;
    }
    header(sink.file, rate, 0);
    voce_speak_options options = {.size = sizeof options, .seed = 1};
    voce_status status = voce_speak(speaker, text, &options, write_audio, &sink);
    rewind(sink.file);
    header(sink.file, rate, sink.samples);
    int closed = fclose(sink.file);
    voce_speaker_free(speaker);
    if (status != VOCE_STATUS_OK) return failed("speak");
    if (closed != 0) {
        perror(path);
        return 1;
    }
    printf("%.2f s of audio in %s\n", (double)sink.samples / rate, path);
    return 0;
}
