import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Reads lines "name TAB file of properties TAB topic". For each it produces a record and consumes it, and prints "name TAB ok" or the error. */
public class KafkaLogins {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null; ) {
            String[] parts = line.split("\t");
            Properties settings = new Properties();
            try (FileInputStream file = new FileInputStream(parts[1])) {
                settings.load(file);
            }
            String outcome;
            try {
                outcome = exchange(settings, new TopicPartition(parts[2], 0), parts[0]);
            } catch (Throwable error) {
                Throwable cause = error;
                while (cause.getCause() != null) cause = cause.getCause();
                outcome = error.getClass().getSimpleName() + " " + cause.getClass().getSimpleName() + " " + cause.getMessage();
            }
            System.out.println(parts[0] + "\t" + outcome.replace('\n', ' '));
        }
    }

    private static String exchange(Properties settings, TopicPartition partition, String value) throws Exception {
        settings.put("max.block.ms", "8000");
        settings.put("default.api.timeout.ms", "8000");
        settings.put("request.timeout.ms", "6000");
        settings.put("delivery.timeout.ms", "8000");
        long offset;
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            offset = producer.send(new ProducerRecord<>(partition.topic(), 0, null, value)).get(10, TimeUnit.SECONDS).offset();
        }
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, offset);
            for (int tries = 0; tries < 20; tries++)
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500)))
                    return record.value().equals(value) ? "ok" : "another value: " + record.value();
            return "nothing consumed";
        }
    }
}
