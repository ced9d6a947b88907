import java.time.Duration;
import java.util.HashSet;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Arguments: bootstrap server, group, RE2J pattern, number of values, seconds. Consumes the topics that match the pattern and prints "topic TAB value" for each record. */
public class PatternConsumer {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        settings.put("group.protocol", "consumer");
        settings.put("auto.offset.reset", "earliest");
        Set<String> seen = new HashSet<>();
        long end = System.currentTimeMillis() + 1000L * Integer.parseInt(arguments[4]);
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(new SubscriptionPattern(arguments[2]));
            while (seen.size() < Integer.parseInt(arguments[3]) && System.currentTimeMillis() < end)
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200)))
                    seen.add(record.topic() + "\t" + record.value());
        }
        seen.forEach(System.out::println);
    }
}
